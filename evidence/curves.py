"""ROC, precision-recall and decision curves, operating points and bands, from class counts at ascending scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.evidence.grid import SiteCounts
from edelweiss.evidence.intervals import mover_interval, wilson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.evidence.grid import Counts
    from edelweiss.evidence.sums import Floats

FIXED = (0.8, 0.9, 0.95)  # specificities at which sensitivity is reported, and the reverse
SUBGROUP_SPECIFICITY = 0.9  # specificity, over all patients of a site, at the threshold used for its subgroups
THRESHOLDS = np.arange(1, 100) / 100  # of decision curves
POINTS = 500  # points kept of a curve: about as many as can be seen
GRID = np.arange(1, 101) / 100  # abscissae of the curves' bands


def above(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Count the samples of each class, (..., bins), with a bin's score or a higher one, from the highest bin down."""
    return np.cumsum(positives[..., ::-1], -1), np.cumsum(negatives[..., ::-1], -1)


def roc(positives: Floats, negatives: Floats) -> dict[str, Floats]:
    """Return the ROC curve: ``fpr`` and ``tpr``, from 0 to 1; empty without both classes."""
    tp, fp = above(positives, negatives)
    if not (tp[-1] and fp[-1]):
        return {"fpr": np.zeros(0), "tpr": np.zeros(0)}
    return _thinned({"fpr": np.append(0.0, fp / fp[-1]), "tpr": np.append(0.0, tp / tp[-1])})


def precision_recall(positives: Floats, negatives: Floats) -> dict[str, Floats]:
    """Return ``recall`` and ``precision`` at each bin, from the highest down; empty without positives."""
    tp, fp = above(positives, negatives)
    some = tp + fp > 0
    if not tp[-1]:
        return {"recall": np.zeros(0), "precision": np.zeros(0)}
    return _thinned({"recall": tp[some] / tp[-1], "precision": tp[some] / (tp + fp)[some]})


def _thinned(curve: dict[str, Floats]) -> dict[str, Floats]:
    """Thin out a curve that has many more than `POINTS` points, without a visible change."""
    moved = sum(np.abs(np.diff(values, prepend=values[0])) for values in curve.values())
    along = np.cumsum(moved)
    if len(along) <= 2 * POINTS:
        return curve
    step = np.floor(along * (POINTS / along[-1]))
    kept = np.append(np.diff(step) > 0, True) | (np.diff(step, prepend=-1.0) > 0)
    return {name: values[kept] for name, values in curve.items()}


def average_precision(positives: Floats, negatives: Floats) -> Floats:
    """Compute average precision, (..., bins) to (...): precision by the recall a bin adds; NaN without positives."""
    tp, fp = above(positives, negatives)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(tp + fp > 0, tp / (tp + fp), 0.0)
        return np.asarray((positives[..., ::-1] * precision).sum(-1) / tp[..., -1])


def average_precision_influence(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return the influence of a positive and of a negative of each bin on average precision, if there are positives.

    The influences of all samples sum to 0, because average precision is homogeneous of degree 0 in the counts.
    """
    tp, fp = (counts[::-1] for counts in above(positives, negatives))  # from the lowest bin up
    treated = np.maximum(tp + fp, 1.0)
    below = [np.cumsum(positives * part / treated**2) for part in (fp, tp)]  # over the positives below a sample
    value, p = float(average_precision(positives, negatives)), tp[0]
    return (tp / treated + below[0] - value) / p, -below[1] / p


def average_precision_variance(sites: Sequence[Counts], design: Sequence[float]) -> tuple[float, float]:
    """Compute the variance of pooled average precision by the infinitesimal jackknife.

    Squared contributions of patients give the variance for new patients at these sites; squared contributions of sites
    that for new sites.

    Each site has counts and a design effect, see `evidence.design`. Returns the variance over patients and that over
    sites; NaN without positives, the second also with a single site.
    """
    sites = SiteCounts(sites)
    total, many = sites.total, len(sites)
    if not total.positives.any():
        return float("nan"), float("nan")
    of_positives, of_negatives = average_precision_influence(total.positives, total.negatives)
    parts, sums = [], []
    for own, place in zip(sites, sites.places, strict=True):
        moved = of_positives[place], of_negatives[place]
        parts.append(float(own.positives @ moved[0] ** 2 + own.negatives @ moved[1] ** 2))
        sums.append(float(own.positives @ moved[0] + own.negatives @ moved[1]))
    return float(np.dot(parts, design)), float(np.dot(sums, sums)) * many / (many - 1) if many > 1 else float("nan")


def net_benefit(p: Floats, positives: Floats, negatives: Floats) -> dict[str, Floats]:
    """Compute a decision curve (Vickers and Elkin, Med Decis Making 26, 2006).

    Net benefit at a threshold t is TP/n - FP/n · t/(1-t), for treating patients with a risk of at least t (``model``)
    and for treating ``all``. Treating nobody has a net benefit of 0.

    Risk p and counts of positives and negatives have shape (bins,).
    """
    order = np.argsort(p, kind="stable")
    first = np.searchsorted(p[order], THRESHOLDS, side="left")
    total = positives.sum() + negatives.sum()
    shares = [np.append(above(positives[order], negatives[order])[kind][::-1], 0.0)[first] / total for kind in (0, 1)]
    odds = THRESHOLDS / (1 - THRESHOLDS)
    treated = (positives.sum() - negatives.sum() * odds) / total
    return {"threshold": THRESHOLDS, "model": shares[0] - shares[1] * odds, "all": treated}


def operating_points(
    positives: Floats, negatives: Floats, scores: Floats, independent: tuple[float, float]
) -> list[dict[str, Any]]:
    """Return the sensitivity at the lowest threshold with each specificity of `FIXED`, and the reverse.

    The Wilson interval takes the threshold as given: it is found on one class, the share on the other.

    Counts and the score of each bin have shape (bins,); `independent` are the classes' effective sample sizes.
    """
    tp, fp = above(positives, negatives)
    p, n = tp[-1], fp[-1]
    if not (p and n):
        return []
    sensitivity, specificity = np.append(0.0, tp) / p, 1 - np.append(0.0, fp) / n
    with np.errstate(over="ignore"):  # the largest float's successor is infinity
        lowest = np.nextafter(np.append(scores[::-1], -np.inf).astype(np.float32), np.float32(np.inf)).astype(float)
    highest = np.append(np.inf, scores[::-1])  # the highest threshold between two bins
    points = []
    for fixed, fixed_share, measure, share, size, thresholds, which in (
        ("specificity", specificity, "sensitivity", sensitivity, independent[0], lowest, -1),
        ("sensitivity", sensitivity, "specificity", specificity, independent[1], highest, 0),
    ):
        for at in FIXED:
            best = np.flatnonzero(fixed_share >= at - 1e-12)[which]
            low, high = (float(end) for end in wilson(share[best], size))
            points.append(
                {
                    "fixed": fixed,
                    "at": at,
                    "reached": float(fixed_share[best]),
                    "measure": measure,
                    "value": float(share[best]),
                    "low": low,
                    "high": high,
                    "threshold": float(thresholds[best]),
                }
            )
    return points


def threshold(scores: Floats, labels: Floats, specificity: float) -> float:
    """Return the lowest threshold with this specificity; scores at or above it are positive.

    Minus infinity without negatives.
    """
    negatives = np.sort(scores[labels == 0])
    below = int(np.ceil(specificity * len(negatives) - 1e-9))
    return float(np.nextafter(negatives[below - 1], np.inf)) if below else -np.inf


def threshold_of_sensitivity(scores: Floats, labels: Floats, sensitivity: float) -> float:
    """Return the highest threshold with this sensitivity; infinity without positives."""
    positives = np.sort(scores[labels == 1])[::-1]
    return float(positives[int(np.ceil(sensitivity * len(positives) - 1e-9)) - 1]) if len(positives) else np.inf


def roc_band(positives: Floats, negatives: Floats, independent: tuple[float, float]) -> tuple[Floats, Floats]:
    """Compute the confidence band of the true positive rate at each false positive rate of `GRID`.

    Two things are uncertain: which score has that false positive rate, and which share of the positives is above it.
    Their Wilson intervals are combined by `evidence.intervals.mover_interval`.

    Counts have shape (bins,), at least one of each class; `independent` are their effective sample sizes.
    """
    tp, fp = (np.append(0.0, counts) for counts in above(positives, negatives))
    tpr, fpr = tp / tp[-1], fp / fp[-1]
    return _band(
        np.interp(GRID, fpr, tpr),
        [
            wilson(np.interp(GRID, fpr, tpr), independent[0]),
            [_at(end, fpr, tpr, independent[1]) for end in wilson(GRID, independent[1])],
        ],
    )


def precision_band(
    positives: Floats, negatives: Floats, independent: tuple[float, float], patients: float
) -> tuple[Floats, Floats]:
    """Compute the confidence band of precision at each recall of `GRID`.

    Three things are uncertain: which score has that recall, which share of the negatives is above it, and the
    prevalence. Their Wilson intervals are combined as in `roc_band`.

    Counts and effective sample sizes are as for `roc_band`. Samples of one of the `patients` mostly share their class.
    """
    tp, fp = (np.append(0.0, counts) for counts in above(positives, negatives))
    tpr, fpr, share = tp / tp[-1], fp / fp[-1], tp[-1] / (tp[-1] + fp[-1])

    def precision(at: Floats, share: Floats | float = share) -> Floats:
        """Return the precision at each recall of `GRID`, for these false positive rates and this prevalence."""
        return np.asarray(share * GRID / (share * GRID + (1 - share) * at))

    found = np.interp(GRID, tpr, fpr)
    of_recall, of_negatives = wilson(GRID, independent[0]), wilson(found, independent[1])
    of_share = wilson(share, patients)
    value = precision(found)
    low, high = _band(
        value,
        [
            [precision(_at(end, tpr, fpr, independent[0])) for end in of_recall[::-1]],
            [precision(end) for end in of_negatives[::-1]],
            [precision(found, end) for end in of_share],
        ],
    )
    # Few samples have the highest scores, so the lower bound is loose there. Precision at a lower recall is assumed to
    # be no lower, unless the curve itself is.
    bounds = np.triu(value[None, :] <= value[:, None])
    return np.asarray(np.where(bounds, low[None, :], 0.0).max(1)), high


def _at(share: Floats, shares: Floats, others: Floats, n: float) -> Floats:
    """Return the share of the other class above the score that ``share`` of this class is above.

    The highest of n samples is expected to have 1 / (n + 1) of its class above it.
    """
    first = np.diff(shares, prepend=-1.0) > 0  # at a sample of this class
    return np.asarray(np.interp(share, np.append(shares[first] * n / (n + 1), 1.0), np.append(others[first], 1.0)))


def _band(value: Floats, ends: Sequence[Sequence[Floats]]) -> tuple[Floats, Floats]:
    low, high = mover_interval(value, [(np.minimum(own[0], value), np.maximum(own[1], value)) for own in ends])
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
