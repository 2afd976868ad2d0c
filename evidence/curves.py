"""Curves and points on them, from counts of both classes at ascending scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evidence.intervals import wilson

if TYPE_CHECKING:
    from evidence.sums import Floats

FIXED = (0.8, 0.9, 0.95)  # specificities, and sensitivities, at which the other is told
SAME_FOR_ALL = 0.9  # specificity, over all patients of a site, of the threshold that its subgroups are judged at
THRESHOLDS = np.arange(1, 100) / 100  # of decision curves
POINTS = 500  # of a curve: about as many as can be seen
GRID = np.arange(1, 101) / 100  # where bands of curves are told


def above(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return how many of each class have the score of a bin or a higher one, from the highest bin down.

    Parameters
    ----------
    positives, negatives : ndarray
        Shape (..., bins).
    """
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
    """Leave out points of a curve that has many more than `POINTS`: it moves by less than can be drawn."""
    moved = sum(np.abs(np.diff(values, prepend=values[0])) for values in curve.values())
    along = np.cumsum(moved)
    if len(along) <= 2 * POINTS:
        return curve
    step = np.floor(along * (POINTS / along[-1]))
    kept = np.append(np.diff(step) > 0, True) | (np.diff(step, prepend=-1.0) > 0)
    return {name: values[kept] for name, values in curve.items()}


def average_precision(positives: Floats, negatives: Floats) -> Floats:
    """Return average precision, the sum of the precisions at each bin, weighted with the recall that it adds.

    Parameters
    ----------
    positives, negatives : ndarray
        Shape (..., bins); NaN where there are no positives.
    """
    tp, fp = above(positives, negatives)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(tp + fp > 0, tp / (tp + fp), 0.0)
        return np.asarray((positives[..., ::-1] * precision).sum(-1) / tp[..., -1])


def net_benefit(p: Floats, positives: Floats, negatives: Floats) -> dict[str, Floats]:
    """Return a decision curve (Vickers and Elkin, Med Decis Making 26, 2006).

    Net benefit at a threshold t is TP/n - FP/n · t/(1-t): of treating those whose risk is t or higher (``model``), and
    of treating ``all``; treating none has 0.

    Parameters
    ----------
    p, positives, negatives : ndarray
        Shape (bins,): the predicted risk of a bin, and how many samples of each class it has.
    """
    order = np.argsort(p, kind="stable")
    first = np.searchsorted(p[order], THRESHOLDS, side="left")
    total = positives.sum() + negatives.sum()
    shares = [np.append(above(positives[order], negatives[order])[kind][::-1], 0.0)[first] / total for kind in (0, 1)]
    odds = THRESHOLDS / (1 - THRESHOLDS)
    treated = (positives.sum() - negatives.sum() * odds) / total
    return {"threshold": THRESHOLDS, "model": shares[0] - shares[1] * odds, "all": treated}


def operating_points(positives: Floats, negatives: Floats, scores: Floats) -> list[dict[str, Any]]:
    """Return the highest sensitivity at each specificity of `FIXED` or a higher one, and the reverse.

    The interval (Wilson) takes the threshold as given.

    Parameters
    ----------
    positives, negatives, scores : ndarray
        Shape (bins,): counts, and the score of each bin.
    """
    tp, fp = above(positives, negatives)
    p, n = tp[-1], fp[-1]
    if not (p and n):
        return []
    tp, fp, thresholds = np.append(0.0, tp), np.append(0.0, fp), np.append(np.inf, scores[::-1])
    points = []
    for fixed, fixed_share, told, told_hits, size in (
        ("specificity", 1 - fp / n, "sensitivity", tp, p),
        ("sensitivity", tp / p, "specificity", n - fp, n),
    ):
        for at in FIXED:
            allowed = np.flatnonzero(fixed_share >= at - 1e-12)
            best = allowed[np.argmax(told_hits[allowed])]
            low, high = wilson(told_hits[best], size)
            points.append({
                "fixed": fixed, "at": at, "reached": float(fixed_share[best]), "told": told,
                "value": float(told_hits[best] / size), "low": low, "high": high, "threshold": float(thresholds[best]),
            })  # fmt: skip
    return points


def threshold(scores: Floats, labels: Floats, specificity: float) -> float:
    """Return the point of `operating_points` with this specificity, of samples: who has this score or more is positive.

    Infinity where no positive has a higher score than so many negatives, and without positives.
    """
    negatives, positives = np.sort(scores[labels == 0]), scores[labels == 1]
    below = int(np.ceil(specificity * len(negatives) - 1e-9))  # so many of them have to lie below it
    above = positives[positives > negatives[below - 1]] if below else positives
    return float(above.min(initial=np.inf))
