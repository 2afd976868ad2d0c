"""The ROC curve of weighted scores, and the area under the part of it that has few false positives."""

from __future__ import annotations

import math

import numpy as np

FALSE_POSITIVE_RATE = 0.3  # up to which the partial AUROC goes


def partial_auroc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Area under the ROC curve up to a false-positive rate of `FALSE_POSITIVE_RATE`, divided by that rate.

    It is the share of pairs of a positive and one of the highest 30 % of the negatives that are ranked right: 1 at
    best, 0.15 on average by chance. scikit-learn's ``roc_auc_score(..., max_fpr=0.3)`` is this one, rescaled so that
    chance is 0.5 (McClish, 1989). Where the rate falls among samples of one score the curve is a straight line.

    Parameters
    ----------
    labels, scores, weights
        As in `problems.metrics.ranking`.

    Returns
    -------
    float
        In [0, 1]; NaN where there is no ROC curve, see `counted_down`.
    """
    counted = counted_down(labels, scores, weights)
    if counted is None:
        return math.nan
    found, passed = (np.append(0.0, part / part[-1]) for part in counted)
    inside = int(np.searchsorted(passed, FALSE_POSITIVE_RATE, side="right"))
    at_end = np.interp(FALSE_POSITIVE_RATE, passed[inside - 1 :], found[inside - 1 :])
    x, y = np.append(passed[:inside], FALSE_POSITIVE_RATE), np.append(found[:inside], at_end)
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) / FALSE_POSITIVE_RATE)


def counted_down(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return how many positives and negatives have at least a score, for each score from the highest down.

    None unless both classes are there, and for scores that rank nothing.
    """
    present = labels if weights is None else labels[weights > 0]
    if present.size == 0 or present.min() == present.max():
        return None
    if not np.isfinite(scores).all():  # a diverged model ranks nothing
        return None
    # As scikit-learn does it, whose import would take a second or two of every process.
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)  # of those with the same score
    weight = np.ones(len(order)) if weights is None else weights[order]
    positive = np.cumsum(np.where(labels[order] == 1, weight, 0.0))[last]
    negative = np.cumsum(np.where(labels[order] == 1, 0.0, weight))[last]
    return positive, negative
