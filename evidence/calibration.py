"""Calibration: does a fifth of the patients with a predicted risk of 20 % have the outcome?

The measures are those of Van Calster et al., BMC Medicine 17:230 (2019): calibration in the large (``intercept``), the
``slope``, and a curve. All are computed from the positives and negatives in each bin of scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.evidence.grid import Counts, SiteCounts
from edelweiss.evidence.intervals import normal_interval, wilson
from edelweiss.evidence.sums import sum_by

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from edelweiss.evidence.sums import Floats, Ints

GROUPS = 10  # groups of predictions, for the curve and the expected calibration error
PLATT_BINS = 2048  # most bins for Platt's map; a fit to more bins than twice this starts from a fit to this many
STEPS, CONVERGED = 100, 1e-12
LONGEST = 100.0  # longest step in log-odds: where all probabilities are 0 or 1, Newton's step is unbounded
CERTAIN = 700.0  # log-odds beyond which a probability is 0 or 1
RIDGE = 1e-9  # makes the slope of constant scores zero


@dataclass(frozen=True)
class Fit:
    """A logistic curve: the log-odds are ``intercept + slope * score``; and its covariance, shape (2, 2)."""

    intercept: float
    slope: float
    covariance: Floats

    def log_odds(self, scores: Floats) -> Floats:
        """Return the log-odds of a positive."""
        return self.intercept + self.slope * scores


UNDEFINED = Fit(math.nan, math.nan, np.full((2, 2), math.nan))
IDENTITY = Fit(0.0, 1.0, np.zeros((2, 2)))
"""For scores that are log-odds already."""


def probability(log_odds: Floats) -> Floats:
    """Convert log-odds to probabilities."""
    return 1 / (1 + np.exp(-np.clip(log_odds, -CERTAIN, CERTAIN)))


def logistic(
    scores: Floats,
    positives: Floats,
    negatives: Floats,
    slope: float | None = None,
    design: Floats | float = 1.0,
    start: Fit | None = None,
) -> Fit:
    """Fit a logistic curve to counts by Newton's method (iteratively reweighted least squares).

    With many scores, a fit to the means of neighbouring scores gives the starting point: the optimum is the same, and
    most steps are cheap.

    Each bin has a score and numbers of samples of each class, which may be fractional, and perhaps a design effect, see
    `evidence.design`; all (bins,). With a fixed slope only the intercept is fitted. `start` is an approximate fit. The
    fit is NaN if there is no optimum: a class is missing, or the scores separate the two.
    """
    every = positives + negatives
    total = every.sum()
    if not (positives.sum() > 0 and negatives.sum() > 0):
        return UNDEFINED
    if slope is None and _separates(scores, positives, negatives):
        return UNDEFINED
    if start is None and len(scores) > 2 * PLATT_BINS:
        start = logistic(*_fewer(scores, positives, negatives), slope)
    mean = float(every @ scores / total)
    scale = math.sqrt(every @ (scores - mean) ** 2 / total) or 1.0
    columns = np.stack([np.ones_like(scores), (scores - mean) / scale])[: 1 if slope is not None else 2]
    offset = 0.0 if slope is None else np.clip(slope * scores, -CERTAIN, CERTAIN)
    ridge = RIDGE * total * np.diag([0.0, 1.0])[: len(columns), : len(columns)]

    def objective(weights: Floats) -> float:
        odds = weights @ columns + offset
        least = np.log1p(np.exp(-np.abs(odds)))
        losses = every @ least + positives @ np.maximum(-odds, 0) + negatives @ np.maximum(odds, 0)
        return float(losses + weights @ ridge @ weights / 2)

    weights = np.zeros(len(columns))
    if start is not None and math.isfinite(start.intercept):
        weights[:] = [start.intercept + (0.0 if slope is not None else start.slope * mean), start.slope * scale][
            : len(columns)
        ]
    elif slope is None:
        weights[0] = math.log(positives.sum() / negatives.sum())
    value = objective(weights)
    for _ in range(STEPS):
        p = probability(weights @ columns + offset)
        gradient = columns @ (positives - every * p) - ridge @ weights
        information = (columns * (every * p * (1 - p))) @ columns.T + ridge
        if np.abs(gradient).max() <= CONVERGED * total:
            break
        step = np.linalg.solve(information + 1e-300 * np.eye(len(columns)), gradient)
        step *= min(1.0, LONGEST / np.abs(step).max())
        while not (left := objective(weights + step)) <= value + 1e-12 * abs(value) and np.abs(step).max() > 1e-15:
            step /= 2
        if np.abs(step).max() <= 1e-15:
            break  # no step improves the objective
        weights, value = weights + step, left
    try:
        inverse = np.linalg.inv(information)
    except np.linalg.LinAlgError:  # all probabilities are 0 or 1
        return UNDEFINED
    covariance = inverse @ (columns * (every * p * (1 - p) * design)) @ columns.T @ inverse
    if slope is not None:
        return Fit(float(weights[0]), slope, np.array([[float(covariance[0, 0]), 0.0], [0.0, 0.0]]))
    back = np.array([[1.0, -mean / scale], [0.0, 1 / scale]])  # undoes the standardisation
    intercept, steepness = back @ weights
    return Fit(float(intercept), float(steepness), back @ covariance @ back.T)


def _separates(scores: Floats, positives: Floats, negatives: Floats) -> bool:
    """Whether the scores separate the classes, so that the likelihood grows with the slope without bound."""
    one, other = scores[positives > 0], scores[negatives > 0]
    return scores.min() < scores.max() and bool(one.min() >= other.max() or other.min() >= one.max())


def platt(counts: Counts) -> Fit:
    """Fit Platt scaling, a map from scores to probabilities (Advances in Large Margin Classifiers, 1999, section 2.2).

    Its targets, (p + 1) / (p + 2) for positives and 1 / (n + 2) for negatives, keep the fit finite where the scores
    separate the classes.
    """
    return _platt(_sums(counts, *_parts(counts.centres(), counts.every)))


def _platt(sums: Floats, start: Fit | None = None) -> Fit:
    """Fit Platt scaling to the output of `_sums`, starting at ``start``."""
    total, positives, negatives = sums[:, sums[1] + sums[2] > 0]
    high, low = (positives.sum() + 1) / (positives.sum() + 2), 1 / (negatives.sum() + 2)
    scores = total / (positives + negatives)
    targets = high * positives + low * negatives, (1 - high) * positives + (1 - low) * negatives
    return logistic(scores, *targets, start=start)


def _parts(scores: Floats, every: Floats) -> tuple[Ints, int]:
    """Group neighbouring ascending scores; return the group of each and the number of groups.

    A fit of two parameters is insensitive to this grouping. The groups have equal shares of the samples and of the
    scores' range, weighted equally. Up to `PLATT_BINS` scores each form a group of their own.
    """
    if len(scores) <= PLATT_BINS:
        return np.arange(len(scores)), len(scores)
    along = np.cumsum(every) / every.sum() + (scores - scores[0]) / (scores[-1] - scores[0])
    reached = (along * (PLATT_BINS / 2)).astype(np.int64)
    part = np.cumsum(np.diff(reached, prepend=reached[:1]) > 0)
    return part, int(part[-1]) + 1


def _fewer(scores: Floats, positives: Floats, negatives: Floats) -> tuple[Floats, Floats, Floats]:
    """Merge neighbouring scores, each group at its mean."""
    order = np.argsort(scores, kind="stable")
    scores, positives, negatives = scores[order], positives[order], negatives[order]
    every = positives + negatives
    if scores[0] == scores[-1]:
        return scores[:1], positives.sum(keepdims=True), negatives.sum(keepdims=True)
    part, many = _parts(scores, every)
    total, one, other = (sum_by(values, part, many) for values in (every * scores, positives, negatives))
    some = one + other > 0
    return (total / np.where(some, one + other, 1.0))[some], one[some], other[some]


def _sums(counts: Counts, part: Ints, many: int) -> Floats:
    """Sum the scores, positives and negatives of each group, shape (3, groups)."""
    values = (counts.every * counts.centres(), counts.positives, counts.negatives)
    return np.stack([sum_by(own, part, many) for own in values])


def platt_leave_one_site_out(sites: Sequence[Counts]) -> list[Fit] | None:
    """Fit Platt scaling for each site on all other sites; None if the others of some site lack a class.

    Fitting and assessing on the same patients is optimistic. This is the internal-external cross-validation of
    Steyerberg and Harrell, J Clin Epidemiol 69 (2016): does the map hold at a hospital that did not contribute to it?
    """
    sites = SiteCounts(sites)
    total = sites.total
    sizes = [[every - own for every, own in zip(total.sizes, site.sizes, strict=True)] for site in sites]
    if len(sites) < 2 or not all(map(all, sizes)):
        return None
    part, many = _parts(total.centres(), total.every)
    every = _sums(total, part, many)
    whole = _platt(every)  # a good start: the other sites hold most of the data
    left = (every - _sums(own, part[place], many) for own, place in zip(sites, sites.places, strict=True))
    return [_platt(sums, whole) for sums in left]


def assessment(
    log_odds: Floats, positives: Floats, negatives: Floats, design: tuple[Floats, Floats, Floats] | None = None
) -> dict[str, Any]:
    """Assess the calibration of predictions.

    Parameters
    ----------
    log_odds, positives, negatives : ndarray
        Shape (bins,): the predicted log-odds of each bin and its number of samples of each class.
    design : (ndarray, ndarray, ndarray), optional
        Shape (bins,) each: the design effects of intercept, slope and curve at the bin's site, see `evidence.design`;
        default: 1.

    Returns
    -------
    dict
        ``intercept`` (ideally 0) and ``slope`` (ideally 1) with Wald intervals, NaN where undefined; ``brier``;
        ``ece``, the expected calibration error over `GROUPS` groups of equal size (Naeini et al., AAAI 2015); and
        ``curve``: for each group the mean prediction, the share of positives with its Wilson interval, and the size.
    """
    every, p = positives + negatives, probability(log_odds)
    total = every.sum()
    of_intercept, of_slope, of_curve = design or [np.ones_like(every)] * 3
    large = logistic(log_odds, positives, negatives, 1.0, of_intercept)
    both = logistic(log_odds, positives, negatives, design=of_slope)
    if np.ptp(log_odds) < 1e-9:  # constant predictions have no slope
        both = UNDEFINED
    curve = _curve(p, positives, every, of_curve)
    return {
        "intercept": normal_interval(large.intercept, float(large.covariance[0, 0]), "Wald"),
        "slope": normal_interval(both.slope, float(both.covariance[1, 1]), "Wald"),
        "brier": float(positives @ (1 - p) ** 2 + negatives @ p**2) / total,
        "ece": float(sum(one["n"] * abs(one["predicted"] - one["observed"]) for one in curve) / total),
        "curve": curve,
    }


def deciles(every: Floats) -> Ints:
    """Assign each bin to one of `GROUPS` groups of equal size; ``every``, shape (bins,), holds the bins' sizes."""
    middle = np.cumsum(every) - every / 2
    return np.asarray(np.minimum((middle * GROUPS / every.sum()).astype(np.int64), GROUPS - 1))


def _curve(p: Floats, positives: Floats, every: Floats, design: Floats) -> list[dict[str, float]]:
    order = np.argsort(p, kind="stable")
    p, positives, every, design = p[order], positives[order], every[order], design[order]
    group = deciles(every)
    parts = (every, positives, every * p, every * design)
    sums = np.stack([np.bincount(group, part, GROUPS) for part in parts])
    size, hit, total, spread = sums[:, sums[0] > 0]
    low, high = wilson(hit / size, size**2 / spread)
    columns = {"predicted": total / size, "observed": hit / size, "low": low, "high": high, "n": size}
    return [dict(zip(columns, row, strict=True)) for row in np.stack(list(columns.values()), 1).tolist()]
