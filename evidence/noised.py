"""AUROC and average precision from noised histograms, with intervals that include the noise.

A site with differential privacy sends, once, for the patients that it holds out: two histograms of scores, of positives
and of negatives, with Gaussian noise in each count. A patient's rows share a weight of 1, so that one patient moves the
counts by at most 1 (L2), whatever the scores.

**Bins.** Their edges are quantiles of all scores, finer at the top, where the few positives are; they come from a
coarser histogram of both classes together, with three times the noise, on a fixed grid. Their number follows from
patients and noise: few where noise is large, since each bin brings its own.

**AUROC.** With counts p_i and n_j of the bins, K_ij = 1 where bin i lies above j and 1/2 in the same one,

    T(A) = Σ_ij p_i n_j (K_ij - A)

is 0 on average at the true A, noise or not, since the noise of p and n is independent: nothing has to be divided by a
noised count. The interval is {A: T(A)² ≤ t² V(A)} (Fieller 1954), where V is the variance by DeLong, with what the
noise adds to its estimate taken out again, plus that of the noise, both quadratic in A. Where positives do not stand
out of the noise it is all of [0, 1], as it should be, and no AUROC is given; those that are given then were lucky, so
t has the fewer degrees of freedom the less the pairs stand out. Over several sites T and V add up: pairs within sites.
Of pairs in one bin the positive wins half, as of ties, or more: the interval holds any share up to what it wins by the
ROC curve below.

**Average precision.** From counts made non-negative, on the log-odds scale. Within a bin the order is unknown, and even
mixing would be pessimistic, most of all in the top bin: the share of positives rises with the score. So between the
edges of a bin the ROC curve is a straight line in the log-odds of both rates; in the outer bins, which have one edge, a
line of slope 1. Its deviation is that of the same estimate from patients and noise drawn anew, by the counts that were
found (a parametric bootstrap, seeded by the counts): the delta method knows nothing of counts made non-negative, and
was up to 1.7 times too wide.

The order within bins adds a range. Where scores crowd at one end the straight line is too low, and so are the top bins'
counts, once noise is cut off at 0: the truth may lie half of the way to the best order, somewhat more where noise is
large. Where scores tie it is too high: bins then hold far more patients than they were made for, and the range begins
at the order that ties have. The interval holds each point of its range in 95 % of cases (Imbens & Manski 2004). How
wide the range is was chosen on simulated shapes of scores; the coverage on others is in differential-privacy.md.

Several sites' counts are added up by bins with edges in the middle of theirs. Bins that are the same for all sites are
first made as few as a site with as many patients would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.common import Schema, record_errors
from edelweiss.common.schema import number, several

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FEWEST, MOST = 6, 48  # bins
COARSE = 3.0  # noise of the first histogram, as a multiple of the second's
FACTOR = math.sqrt(1 + COARSE**-2)  # of the noise of one histogram, when the budget is for both
GRID = np.arange(-12, 12.25, 0.5)  # of the first, in asinh(8 score)
FIXED: Floats = np.sinh(np.arange(-8, 8.25, 0.5)) / 8
"""Edges that are the same for all sites, so that their histograms can be added, shape (33,)."""
STEPS = np.linspace(0, 1, 801)  # of A
NORMAL = 1.959963985  # 97.5 % quantile
PAIRS = 3.0  # degrees of freedom by the square of how far the number of pairs stands out of the noise
OUTSTANDING = 4.0  # standard deviations of noise by which positives have to stand out for an average precision
DRAWS = 100  # of patients and noise, to find an average precision's deviation
SLACK = 0.1  # of that deviation: how far below the order that is assumed within bins the truth may be
BETTER, FLATTENED = 0.45, 0.7  # of the way to the best order: how far above; the second by the noise among positives
CROWDED = 0.25, 0.1  # share of patients beyond what bins were to hold: where scores may tie, and how soon they do
DEALT = 1.25  # of the deviation over several sites, since their patients are dealt to common bins
LEAST = 1e-3  # average precision, and most short of 1
PLACES = (np.arange(12) + 0.5) / 12  # within a bin, of its positives
KINDS = ("positives", "negatives")
WITHIN, OVER = "within sites", "over all sites"
ENDS = {"value": "", "low": "-low", "high": "-high", "noise": "-noise"}  # of an estimate, and how its name ends
COUNT, SCORE = number(-1e12, 1e12), number(-1e6, 1e6)
SCHEMA = Schema(
    {
        "edges": several(SCORE, most=MOST - 1),
        "positives": several(COUNT, most=MOST),
        "negatives": several(COUNT, most=MOST),
        "noise": number(1e-9, 1e9),
    }
)


def _on_grid(counts: NDArray[Any]) -> Floats:
    """Round counts and their noise, each by itself: else the last bits of a sum tell of which counts it cannot be."""
    rounded: Floats = np.rint(counts * 2.0**20) / 2**20
    return rounded


@dataclass(frozen=True, eq=False)
class Noised:
    """Noised counts of a site's held-out patients by score.

    Attributes
    ----------
    edges : ndarray
        Between the bins, ascending, shape (B - 1,).
    positives, negatives : ndarray
        Shape (B,), of any sign.
    noise : float
        Standard deviation of each count's noise.
    """

    edges: Floats
    positives: Floats
    negatives: Floats
    noise: float

    @classmethod
    def of(
        cls,
        scores: Floats,
        positive: Floats,
        weights: Floats,
        patients: int,
        noise: float,
        normal: Callable[[int], Floats],
        edges: Floats | None = None,
    ) -> Noised:
        """Count scores, shape (n,), of samples that are ``positive`` (0 or 1), with weights, and add noise.

        Parameters
        ----------
        patients
            How many there are, which is public: also those whose samples weigh nothing.
        noise
            Standard deviation, if one histogram were all that is sent.
        normal
            Returns so many standard normal numbers.
        edges
            To count between; default: edges that follow from a first, coarser histogram.
        """
        finite = np.nan_to_num(np.asarray(scores, np.float64), nan=0.0, posinf=1e6, neginf=-1e6)
        if edges is not None:
            return cls._between(edges, finite, positive, weights, noise, normal)
        noise *= FACTOR
        bins = _bins(patients, noise)
        coarse = np.histogram(np.clip(np.arcsinh(8 * finite), GRID[0], GRID[-1]), GRID, weights=weights)[0]
        edges = _edges(_on_grid(coarse) + _on_grid(COARSE * noise * normal(len(coarse))), COARSE * noise, bins)
        return cls._between(edges, finite, positive, weights, noise, normal)

    @classmethod
    def _between(
        cls,
        edges: Floats,
        scores: Floats,
        positive: Floats,
        weights: Floats,
        noise: float,
        normal: Callable[[int], Floats],
    ) -> Noised:
        place, bins = np.searchsorted(edges, scores), len(edges) + 1
        p, n = (
            _on_grid(np.bincount(place, weights * own, bins)) + _on_grid(noise * normal(bins))
            for own in (positive, 1 - positive)
        )
        return cls(edges, p, n, noise)

    def record(self) -> dict[str, Any]:
        """Write it as a record of a message."""
        return {
            "edges": self.edges.tolist(),
            "positives": self.positives.tolist(),
            "negatives": self.negatives.tolist(),
            "noise": self.noise,
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Noised:
        """Read a record that `wrong` accepts."""
        edges, p, n = (np.array(record[name], float) for name in ("edges", "positives", "negatives"))
        return cls(edges, p, n, record["noise"])

    @staticmethod
    def wrong(record: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with a received record."""
        if found := record_errors(record, SCHEMA):
            return found
        bins = len(record["edges"]) + 1
        if not FEWEST <= bins == len(record["positives"]) == len(record["negatives"]):
            return ["its histograms do not fit their edges"]
        return [] if (np.diff(record["edges"]) >= 0).all() else ["its edges must ascend"]


def _edges(noised: Floats, noise: float, bins: int) -> Floats:
    """Return the edges between bins from the noised counts on the grid."""
    counts = np.where(noised > 2 * noise, noised, 0.0)
    if not counts.any():
        return np.linspace(-2, 2, bins + 1)[1:-1]
    share = np.concatenate([[0.0], counts.cumsum() / counts.sum()])
    found: Floats = np.sinh(np.interp(_plan(bins)[1:-1], share + 1e-9 * np.arange(len(share)), GRID)) / 8
    return found


def _bins(patients: float, noise: float) -> int:
    """Return how many bins there should be."""
    return int(np.clip(round((patients / noise) ** 0.35), FEWEST, MOST))


def _plan(bins: int) -> Floats:
    """Return the share of patients that should lie below each edge, from 0 to 1, shape (bins + 1,)."""
    found: Floats = 1 - (1 - np.linspace(0, 1, bins + 1)) ** 2
    return found


# ---------------------------------------------------------------------- estimates


def estimates(sites: Sequence[Noised], *, common: bool = True) -> dict[str, float]:
    """Return AUROC within sites and average precision, each with ``-low``, ``-high`` and ``-noise``.

    The last is the share of the interval's width that is there for the noise. A number that the noise hides is left
    out: an AUROC whose interval is all of [0, 1], an average precision where positives hardly stand out. Where sites do
    not score with a ``common`` model, their patients have no order together, and there is no average precision.
    """
    found: dict[str, float] = {}
    for name, estimate in (("auroc", _auroc), *[("auprc", _average_precision)] * common):
        if (one := estimate(sites, with_noise=True)) is None:
            continue
        without = estimate(sites, with_noise=False)
        width, alone = one[2] - one[1], without[2] - without[1] if without else 0.0
        found[name], found[f"{name}-low"], found[f"{name}-high"] = one
        found[f"{name}-noise"] = max(0.0, 1 - alone / width) if width > 0 else 0.0
    return found


def in_evidence(
    found: Mapping[str, float], label: str = "", *, common: bool = True, pairs: str = WITHIN
) -> dict[str, Any]:
    """Return the `estimates` of a label as evidence.json has them; ``value`` is None where the noise hides it.

    Parameters
    ----------
    found
        As in metrics.jsonl: of several labels by names such as ``"auroc-low.Edema"``.
    label
        Empty where there is one.
    common
        As in `estimates`; otherwise there is no ``auprc``.
    pairs
        Whose pairs of patients an AUROC is over: `WITHIN`, or `OVER` where only a sum over the sites is known.
    """
    of = f".{label}" * bool(label)
    return {
        name: {key: found.get(f"{name}{end}{of}") for key, end in ENDS.items()} | how
        for name, how in (("auroc", {"by": "Fieller", "pairs": pairs}), *[("auprc", {"by": "bootstrap"})] * common)
    }


def _auroc(sites: Sequence[Noised], *, with_noise: bool) -> tuple[float, float, float] | None:
    """Return estimate and 95 % interval; None if every A is possible."""
    pairs, total, more, positives, spread = 0.0, 0.0, 0.0, 0.0, 0.0
    variance = np.zeros((3, 3))  # at A = 0, 1/2, 1: of the noise, of sampling, the least of the noise
    for site in sites:
        p, n, noise = site.positives, site.negatives, site.noise**2
        above = np.tri(len(p), k=-1) + np.eye(len(p)) / 2
        pairs += float(p.sum() * n.sum())
        total += float(p @ above @ n)
        more += max(_won_in_bins(_non_negative(p), _non_negative(n)), 0.0)
        positives += float(p.sum())
        of_sum = noise * len(p)
        spread += of_sum * max(float(p.sum() ** 2 + n.sum() ** 2) - of_sum, of_sum)
        for row, a in enumerate((0.0, 0.5, 1.0)):
            k = above - a
            by_p, by_n, squares = (k @ n) ** 2, (p @ k) ** 2, (k**2).sum()
            twice = noise * noise * squares
            variance[row] += (
                noise * (by_p.sum() + by_n.sum()) - twice,
                p @ (by_p - noise * (k**2).sum(1)) + n @ (by_n - noise * (k**2).sum(0)),
                twice,
            )
    if pairs <= 0:
        return None
    square = 2 * (variance[2] - 2 * variance[1] + variance[0])
    line = variance[2] - variance[0] - square
    of_noise, sampling, least = (variance[0] + line * STEPS[:, None] + square * STEPS[:, None] ** 2).T
    sampling = np.maximum(sampling, 0.0)
    both = sampling + np.maximum(of_noise, least) * with_noise
    freedom = (max(positives, 4.0) - 1) * (both / np.maximum(sampling, 1e-9 * both + 1e-300)) ** 2
    if with_noise:  # where positives hardly stand out, those intervals that are not all of [0, 1] miss too often
        freedom = np.minimum(freedom, PAIRS * pairs**2 / spread)
    value = float(np.clip((total + more / 2) / pairs, 0, 1))
    deviation, away = np.sqrt(both), total - STEPS * pairs
    apart = more / max(float(np.interp(value, STEPS, deviation)), 1e-9)
    reach = _reach(apart) / NORMAL * _t(freedom) * deviation
    possible = (away <= reach) & (away >= -more - reach)
    if not possible.any():
        return value, value, value
    low, high = STEPS[possible][[0, -1]]
    if with_noise and low == 0 and high == 1:
        return None
    return value, float(low), float(high)


def _t(freedom: Floats) -> Floats:
    """Return the 97.5 % quantile of Student's t, by its expansion in 1 / freedom (Abramowitz & Stegun 26.7.5)."""
    z, v = NORMAL, 1 / np.maximum(freedom, 3.0)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    found: Floats = z + np.sum([term * v ** (power + 1) for power, term in enumerate(terms)], 0)
    return found


def _average_precision(sites: Sequence[Noised], *, with_noise: bool) -> tuple[float, float, float] | None:
    """Return estimate and interval over the patients of all sites, on one grid of bins; None if the noise hides it."""
    total, negatives = (float(sum(getattr(site, kind).sum() for site in sites)) for kind in KINDS)
    spread: float = math.sqrt(sum(len(site.positives) * site.noise**2 for site in sites))
    if total <= OUTSTANDING * spread or negatives <= 0:
        return None
    edges = _edges_of_all(sites)
    (p, of_p), (n, of_n) = (_summed(sites, kind, edges) for kind in KINDS)
    orders = np.array([_precision(p, n), _best_order(p, n), _tied(p, n)])
    value, best, tied = _log_odds(orders, LEAST)
    crowded = min(max((_crowded(sites) - CROWDED[0]) / CROWDED[1], 0.0), 1.0)
    deviation = max(_simulated((p, of_p * with_noise), (n, of_n * with_noise)), 1e-9)
    deviation *= DEALT if len(sites) > 1 else 1.0
    low = value - max(SLACK * deviation, crowded * (value - tied))
    high = value + (BETTER + FLATTENED * spread / total) * max(best - value, 0.0)
    reach = _reach((high - low) / deviation) * deviation
    found = float(orders[0])
    return found, min(found, _share(low - reach)), max(found, _share(high + reach))


def _summed(sites: Sequence[Noised], kind: str, edges: Floats) -> tuple[Floats, Floats]:
    """Return counts of all sites by common bins, none negative, and the covariance of their noise.

    A bin of a site that lies in several common ones is dealt to them: first evenly, then as all sites' patients lie.
    """
    maps, found = [_onto(edges, site.edges) for site in sites], np.zeros(0)
    for last in (False, False, True) if len(sites) > 1 else (True,):
        counts = [own @ getattr(site, kind) for own, site in zip(maps, sites, strict=True)]
        found = _non_negative(np.sum(counts, 0))
        if not last:
            weights = [_onto(site.edges, edges) * (found + 1e-3 * found.mean()) for site in sites]
            maps = [(own / np.maximum(own.sum(1, keepdims=True), 1e-300)).T for own in weights]
    return found, np.sum([site.noise**2 * own @ own.T for own, site in zip(maps, sites, strict=True)], 0)


def _simulated(*counts: tuple[Floats, Floats]) -> float:
    """Return the standard deviation of the log-odds of average precision, over patients and noise drawn anew.

    ``counts`` of positives, then of negatives, each with the covariance of its noise. The draws follow from the counts,
    so that the same histograms have the same interval.
    """
    random = np.random.default_rng(np.concatenate([own for own, _ in counts]).view(np.uint32))
    drawn = [
        _non_negative(random.poisson(own, (DRAWS, len(own))) + random.standard_normal((DRAWS, len(own))) @ _root(noise))
        for own, noise in counts
    ]
    return float(_log_odds(_precision(*drawn), LEAST).std())


def _root(covariance: Floats) -> Floats:
    """Return the symmetric square root."""
    values, vectors = np.linalg.eigh(covariance)
    found: Floats = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return found


def _crowded(sites: Sequence[Noised]) -> float:
    """Return the share of patients in bins beyond the share that those were meant to hold, without what noise explains.

    Scores of few distinct values, or such as crowd within a cell of the first histogram, do not spread over the bins.
    """
    excess, patients = 0.0, 0.0
    for site in sites:
        counts = _non_negative(site.positives + site.negatives)
        total, bins = counts.sum(), len(counts)
        patients += total
        if not np.array_equal(site.edges, FIXED):  # those follow no plan
            excess += np.maximum(counts - total * np.diff(_plan(bins)), 0.0).sum() - bins * site.noise
    return excess / max(patients, 1e-9)


def _edges_of_all(sites: Sequence[Noised]) -> Floats:
    """Return edges of bins for the counts of all sites, ascending."""
    first, bins = sites[0], max(len(site.positives) for site in sites)
    if np.array_equal(first.edges, FIXED):  # far more bins than the patients fill
        both = first.positives + first.negatives
        counts = np.where(both > 2 * math.sqrt(2) * first.noise, both, 0.0)
        wanted = _plan(_bins(max(both.sum(), 0.0), first.noise))[1:-1] * counts.sum()
        few: Floats = FIXED[np.unique(np.searchsorted(counts.cumsum(), wanted).clip(0, len(FIXED) - 1))]
        return few
    if len(sites) == 1:
        return first.edges
    own = [np.interp(_plan(bins)[1:-1], _plan(len(site.positives))[1:-1], np.arcsinh(8 * site.edges)) for site in sites]
    patients = [max(float(site.positives.sum() + site.negatives.sum()), 1.0) for site in sites]
    found: Floats = np.sinh(np.average(own, 0, weights=patients)) / 8
    return found


def _onto(edges: Floats, own: Floats) -> Floats:
    """Return the matrix that deals counts by a site's bins to the bins of others, evenly in asinh(8 score)."""
    ends = [np.arcsinh(8 * np.concatenate([[-1e6], each, [1e6]])) for each in (edges, own)]
    for each in ends:  # the outer bins have no width of their own
        each[0], each[-1] = min(ends[0][1], ends[1][1]) - 1, max(ends[0][-2], ends[1][-2]) + 1
    low = np.maximum(ends[0][:-1, None], ends[1][None, :-1])
    high = np.minimum(ends[0][1:, None], ends[1][None, 1:])
    width = np.diff(ends[1])
    shared: Floats = np.maximum(high - low, 0.0) / np.where(width > 0, width, 1.0)
    thin = np.flatnonzero(width <= 0)
    shared[np.searchsorted(ends[0][1:-1], ends[1][thin]), thin] = 1.0
    return shared


def _precision(p: Floats, n: Floats) -> Floats:
    """Return the average precision of counts by ascending bins, shape (..., B); shape (...)."""
    (tp, positives), (_, negatives) = _from_the_top(p), _from_the_top(n)
    recall, false = _lines(p, n)
    true, false = recall * positives[..., None], false * negatives[..., None]
    found: Floats = (np.diff(tp)[..., None] * true / np.maximum(true + false, 1e-9)).sum((-1, -2)) / len(PLACES)
    return found


def _won_in_bins(p: Floats, n: Floats) -> float:
    """Return how many of the pairs of a positive and a negative in one bin the positive wins, beyond half of them."""
    fp = _from_the_top(n)[0]
    above, in_bin = _lines(p, n)[1].mean(-1) - fp[:-1], np.diff(fp)
    below = 1 - above / np.maximum(in_bin, 1e-9)
    return float((p * n)[::-1] @ np.where(in_bin > 1e-9, below - 0.5, 0.0))


def _lines(p: Floats, n: Floats) -> tuple[Floats, Floats]:
    """Return the shares of positives and of negatives that score higher, from the top, shape (..., B, `PLACES`).

    At evenly spread positives of each bin, where the ROC curve is a straight line in the log-odds of both shares.
    """
    (tp, positives), (fp, negatives) = _from_the_top(p), _from_the_top(n)
    y, x = (_log_odds(rate, 0.25 / np.maximum(total, 1.0)) for rate, total in ((tp, positives), (fp, negatives)))
    rise = np.diff(y)
    steep = np.where(rise > 1e-9, np.diff(x) / np.maximum(rise, 1e-9), 0.0)
    steep[..., [0, -1]] = 1.0
    lower = [*range(1, p.shape[-1]), p.shape[-1] - 1]  # the edge that a bin's line goes through; the last has an upper
    recall = tp[..., :-1, None] + np.diff(tp)[..., None] * PLACES
    line = x[..., lower, None] + steep[..., None] * (_log_odds(recall, 1e-9) - y[..., lower, None])
    false: Floats = np.clip(1 / (1 + np.exp(-np.clip(line, -50, 50))), fp[..., :-1, None], fp[..., 1:, None])
    return recall, false


def _from_the_top(counts: Floats) -> tuple[Floats, Floats]:
    """Return the share of counts above each edge, from none to all, shape (..., B + 1), and their sum, (..., 1)."""
    total = np.maximum(counts.sum(-1, keepdims=True), 1e-9)
    shares = counts[..., ::-1].cumsum(-1) / total
    return np.concatenate([np.zeros_like(total), shares], -1), total


def _log_odds(rate: Floats, least: Floats | float) -> Floats:
    """Return log-odds of rates that are kept so far from 0 and 1."""
    inside = np.clip(rate, least, 1 - least)
    found: Floats = np.log(inside / (1 - inside))
    return found


def _best_order(p: Floats, n: Floats) -> float:
    """Return the average precision if within each bin all positives scored higher than the negatives."""
    above, before = p[::-1].cumsum()[::-1] - p / 2, n[::-1].cumsum()[::-1] - n
    return float(p @ (above / np.maximum(above + before, 1e-9)) / max(p.sum(), 1e-9))


def _reach(apart: float) -> float:
    """Return how many deviations beyond the ends of a range an interval has to go, to hold any point of it in 95 %.

    The ends lie so many deviations ``apart``: from 1.96 at 0 down to 1.645, as only one end can be missed.
    """
    low, high = 1.6, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        covers = (math.erf((middle + apart) / math.sqrt(2)) + math.erf(middle / math.sqrt(2))) / 2
        low, high = (middle, high) if covers < 0.95 else (low, middle)
    return high


def _tied(p: Floats, n: Floats) -> float:
    """Return the average precision if within each bin all scores were equal."""
    true, both = p[::-1].cumsum()[::-1], (p + n)[::-1].cumsum()[::-1]
    return float(p @ (true / np.maximum(both, 1e-9)) / max(p.sum(), 1e-9))


def _non_negative(counts: Floats) -> Floats:
    """Return the nearest counts of the same sum that are not negative, shape (..., B); all 0 if it is negative."""
    falling = -np.sort(-counts, axis=-1)
    total = np.maximum(counts.sum(-1, keepdims=True), 0.0)
    excess = (falling.cumsum(-1) - total) / np.arange(1, counts.shape[-1] + 1)
    last = (falling > excess).sum(-1, keepdims=True) - 1
    found: Floats = np.maximum(counts - np.take_along_axis(excess, np.maximum(last, 0), -1), 0.0)
    return found


def _share(odds: float) -> float:
    """Return the share that has these log-odds."""
    return 1 / (1 + math.exp(-min(max(odds, -50.0), 50.0)))
