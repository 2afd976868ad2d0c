"""The table of metrics, how each is computed at a site, and how it is shown.

AUROC and average precision are scikit-learn's. A problem reports a site's own, exactly; what a hospital tells of its
own patients is less, see `client_app.policy.coarsening`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edelweiss.problems.errors import ProblemError
from edelweiss.problems.histogram import Histogram
from edelweiss.problems.roc import counted_down, partial_auroc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from edelweiss.problems.base import Metrics


@dataclass(frozen=True)
class Metric:
    """What everybody must know of a number in an evaluation.

    Attributes
    ----------
    label : str
        How a person reads it.
    better : str
        ``"up"`` or ``"down"``; empty for a count.
    pooled : str
        How several sites' become one: ``"mean"``, weighted with their sample counts; ``"sum"``; ``"scores"`` or
        ``"classes"``: computed anew from the summed histograms of scores, or the summed counts of each class;
        ``"most"``: the largest; ``"only"``: a part of these, dropped after that.
    diverges : bool
        Whether it grows without bound when a run diverges, so that ``loss-bound`` holds for it.
    headline : bool
        Whether it is in a round's line, in the tables and in the curves.
    log : bool
        Whether its curve has a logarithmic axis.
    low, high : float
        What it cannot be beyond.
    """

    label: str
    better: str = ""
    pooled: str = "mean"
    diverges: bool = False
    headline: bool = False
    log: bool = False
    low: float = -math.inf
    high: float = math.inf


METRICS: dict[str, Metric] = {
    "auroc": Metric("AUROC", "up", pooled="scores", headline=True, low=0.0, high=1.0),
    "auprc": Metric("AUPRC", "up", pooled="scores", headline=True, low=0.0, high=1.0),
    "partial-auroc": Metric("partial AUROC", "up", pooled="scores", headline=True, low=0.0, high=1.0),
    "accuracy": Metric("accuracy", "up", pooled="classes", headline=True, low=0.0, high=1.0),
    "worst-class": Metric("worst class", "up", pooled="classes", headline=True, low=0.0, high=1.0),
    "robust-accuracy": Metric("robust accuracy", "up", headline=True, low=0.0, high=1.0),
    "loss": Metric("loss", "down", diverges=True, headline=True),
    "clean-loss": Metric("clean loss", "down"),
    "distance-x": Metric("‖x-x*‖²", "down", diverges=True, headline=True, log=True, low=0.0),
    "distance-y": Metric("‖y-y*‖²", "down", diverges=True, headline=True, log=True, low=0.0),
    "auroc-ties": Metric("order unknown, of AUROC", pooled="scores", low=0.0, high=1.0),
    "auprc-ties": Metric("order unknown, of AUPRC", pooled="scores", low=0.0, high=1.0),
    "partial-auroc-ties": Metric("order unknown, of partial AUROC", pooled="scores", low=0.0, high=1.0),
    "n": Metric("samples", pooled="sum", low=1),
    "positives": Metric("positives", pooled="sum", low=0),
    "fewest": Metric("fewest samples that a number is about", pooled="most", low=1),
    "positive-scores": Metric("histogram of the positives' scores", pooled="only"),
    "negative-scores": Metric("histogram of the negatives' scores", pooled="only"),
    "class-correct": Metric("right answers by class", pooled="only"),
    "class-counts": Metric("samples by class", pooled="only"),
}
"""Every metric that a problem may report, in the order in which they are shown; one without a row is refused.

Of several labels each label's own are called ``"auroc.Edema"``; then ``"auroc"`` and ``"auprc"`` are the means over the
labels that have samples of both classes, and there is no ``"positives"`` of all.
"""

RANKINGS = ("auroc", "auprc")
PARTIAL = "partial-auroc"
TIES = {kind: f"{kind}-ties" for kind in (*RANKINGS, PARTIAL)}
"""The most by which each may be off, because sites told of groups of samples, and not of the order within."""
HISTOGRAMS = ("positive-scores", "negative-scores")
HEADLINE = tuple(name for name, metric in METRICS.items() if metric.headline)


def metric(name: str) -> Metric:
    """Return a metric's row, that of a label's too.

    Raises
    ------
    ProblemError
        When it has none.
    """
    kind, _ = split(name)
    if kind not in METRICS:
        raise ProblemError(f"the metric {kind!r} has no row in problems/metrics.py: add one to METRICS")
    return METRICS[kind]


def within_range(name: str, values: np.ndarray) -> np.ndarray:
    """Return values cut to what a metric can be; an empty name is none's, and has no range."""
    return np.clip(values, METRICS[name].low, METRICS[name].high) if name else values


def split(name: str) -> tuple[str, str]:
    """Return the metric and the label in a name like ``"auroc.Edema"``; the label is empty where there is none."""
    kind, _, label = name.partition(".")
    return kind, label


def by_label(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the metrics of each label by their names without it; those of no label under the empty name."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        kind, label = split(name)
        found.setdefault(label, {})[kind] = value
    return found


def of_labels(each: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of several labels as those of one evaluation: the means, and each label's own."""
    kinds = [kind for kind in (*RANKINGS, *TIES.values()) if all(kind in own for own in each.values())]
    means = {kind: mean_of([own[kind] for own in each.values()]) for kind in kinds}
    return means | {f"{kind}.{label}": value for label, own in each.items() for kind, value in own.items()}


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of what is defined; NaN where nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def shown(value: float | None, off: float | None = 0.0, digits: int = 4) -> str:
    """Format a metric, in no more digits than are known; a dash where it is not defined.

    Parameters
    ----------
    value : float, optional
        NaN or None where there is none.
    off : float, optional
        The most by which it may be off, as ``auroc-ties`` says. A share of which no digit is known is shown by its
        ends, and one that may be anything by a dash.
    digits : int
        Behind the point, where all are known; of a small number its first digits instead.
    """
    if value is None or math.isnan(value):
        return "-"
    if off and off >= 0.5 * 10**-digits:
        known = math.ceil(-math.log10(2 * off)) - 1  # digits of which half a unit is more than this
        if known > 0:
            return f"{value:.{known}f}"
        low, high = max(0.0, value - off), min(1.0, value + off)
        return f"{low:.2f} to {high:.2f}" if low > 0 or high < 1 else "-"
    return f"{value:.3e}" if value and abs(value) < 10 ** (1 - digits) and digits > 2 else f"{value:.{digits}f}"


def shown_in(metrics: Mapping[str, Any], name: str) -> str:
    """Format a metric of an evaluation, or of a line that has one, in the digits that are known."""
    return shown(metrics.get(name), ties(metrics, name))


def ties(metrics: Mapping[str, Any], name: str) -> float:
    """Return the most by which a metric of an evaluation may be off, see `TIES`; 0 where nothing says so."""
    kind, label = split(name)
    found = metrics.get(f"{TIES[kind]}.{label}" if label else TIES[kind]) if kind in TIES else 0.0
    return found if isinstance(found, int | float) and not math.isnan(found) else 0.0


def ranking(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> dict[str, float]:
    """Area under the ROC curve and average precision.

    Parameters
    ----------
    labels : ndarray
        Shape (n,), 1 for positive and 0 for negative.
    scores : ndarray
        Shape (n,), any monotone score.
    weights : ndarray, optional
        Shape (n,), non-negative sample weights.

    Returns
    -------
    dict[str, float]
        ``auroc`` and ``auprc``; both NaN unless both classes are there: neither is defined then.
    """
    counted = counted_down(labels, scores, weights)
    if counted is None:
        return {"auroc": math.nan, "auprc": math.nan}
    positive, negative = counted
    found = np.diff(positive, prepend=0.0)
    passed = np.diff(negative, prepend=0.0)
    taken = positive + negative
    precision = np.divide(positive, taken, out=np.zeros_like(taken), where=taken > 0)
    area = np.sum(passed * (positive - found / 2))
    return {
        "auroc": float(area / (positive[-1] * negative[-1])),
        "auprc": float(np.sum(found * precision) / positive[-1]),
    }


def ranked(labels: np.ndarray, scores: np.ndarray, *, partial: bool = False) -> Metrics:
    """Return all that an evaluation says of scores: their ranking, counts, and the histograms that pooling needs.

    Parameters
    ----------
    labels, scores : ndarray
        As in `ranking`; there may be none.
    partial : bool
        Whether to add the partial AUROC.
    """
    return {
        **ranking(labels, scores),
        **({PARTIAL: partial_auroc(labels, scores)} if partial else {}),
        "n": len(labels),
        "positives": int(labels.sum()),
        "fewest": 1,
        "positive-scores": Histogram.of(scores[labels == 1]).packed(),
        "negative-scores": Histogram.of(scores[labels == 0]).packed(),
    }


def correct_by_class(labels: Tensor, logits: Tensor) -> Metrics:
    """Accuracy, that of the worst class, and the counts per class that pooling needs.

    Parameters
    ----------
    labels : Tensor
        Shape (n,), classes 0 to C-1.
    logits : Tensor
        Shape (n, C).
    """
    classes = logits.shape[1]
    right = torch.bincount(labels[logits.argmax(1) == labels], minlength=classes).tolist()
    total = torch.bincount(labels, minlength=classes).tolist()
    return {**accuracy(right, total), "class-correct": right, "class-counts": total}


def accuracy(right: Sequence[int], total: Sequence[int]) -> dict[str, float]:
    """Share of right answers, over all samples and in the worst class; NaN without samples."""
    if not sum(total):
        return {"accuracy": math.nan, "worst-class": math.nan}
    worst = min(r / t for r, t in zip(right, total, strict=True) if t)
    return {"accuracy": sum(right) / sum(total), "worst-class": worst}
