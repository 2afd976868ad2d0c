"""The ROC curve of weighted scores, and the partial area under it at low false-positive rates."""

from __future__ import annotations

import math

import numpy as np

FALSE_POSITIVE_RATE = 0.3  # upper end of the partial AUROC


def partial_auroc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Compute the area under the ROC curve up to `FALSE_POSITIVE_RATE`, divided by that rate; NaN without a curve.

    It is the share of correctly ranked pairs of a positive and one of the highest 30 % of the negatives: at best 1, by
    chance 0.15. scikit-learn's ``roc_auc_score(..., max_fpr=0.3)`` rescales it so that chance is 0.5 (McClish, 1989).
    Among ties the curve is a straight line.
    """
    counted = cumulative_counts(labels, scores, weights)
    if counted is None:
        return math.nan
    found, passed = (np.append(0.0, part / part[-1]) for part in counted)
    inside = int(np.searchsorted(passed, FALSE_POSITIVE_RATE, side="right"))
    at_end = np.interp(FALSE_POSITIVE_RATE, passed[inside - 1 :], found[inside - 1 :])
    x, y = np.append(passed[:inside], FALSE_POSITIVE_RATE), np.append(found[:inside], at_end)
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) / FALSE_POSITIVE_RATE)


def cumulative_counts(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Count the positives and negatives with at least each score, from the highest down.

    None without both classes, or for scores that are not finite.
    """
    present = labels if weights is None else labels[weights > 0]
    if present.size == 0 or present.min() == present.max():
        return None
    if not np.isfinite(scores).all():  # the model has diverged
        return None
    # As in scikit-learn, whose import takes a second or two.
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)  # the last of each group of ties
    weight = np.ones(len(order)) if weights is None else weights[order]
    positive = np.cumsum(np.where(labels[order] == 1, weight, 0.0))[last]
    negative = np.cumsum(np.where(labels[order] == 1, 0.0, weight))[last]
    return positive, negative
