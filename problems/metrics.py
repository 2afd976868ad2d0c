"""The table of metrics, how each is computed at a site, and what an evaluation that was sent may hold.

AUROC and average precision are scikit-learn's. A problem reports a site's own, exactly; what a hospital tells of its
own patients is less, see `client_app.policy.coarse`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from keys import Number, Several
from problems.errors import ProblemError
from problems.roc import counted_down, partial_auroc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from problems.base import Metrics

BINS = 512
LARGEST_COUNT = 2**53  # a whole number up to here is a float, too
ROUNDING = 1e-9  # a sum of shares may come out as 1.0000000000000002
LIMIT = 8.0  # logits are clipped to ±8 (a probability of 0.99966); a bin is 1/32 wide


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
        ``"only"``: a part of these, dropped after that.
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
    "n": Metric("samples", pooled="sum", low=1),
    "positives": Metric("positives", pooled="sum", low=0),
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
    means = {kind: mean_of([own[kind] for own in each.values()]) for kind in RANKINGS}
    return means | {f"{kind}.{label}": value for label, own in each.items() for kind, value in own.items()}


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of what is defined; NaN where nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def shown(value: float | None) -> str:
    """Format a metric; a dash where it is not defined."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.3e}" if value and abs(value) < 1e-3 else f"{value:.4f}"


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
        "positive-scores": histogram(scores[labels == 1]),
        "negative-scores": histogram(scores[labels == 0]),
    }


def schema_like(example: Metrics) -> dict[str, Number | Several]:
    """Describe an evaluation: the metrics of another one, within what each can be. Lists are counts.

    Raises
    ------
    ProblemError
        When a metric has no row.
    """
    found: dict[str, Number | Several] = {}
    for name, value in example.items():
        row = metric(name)
        if row.pooled == "only":
            long = len(value) if isinstance(value, list) else 0
            found[name] = Several(Number(0, LARGEST_COUNT, whole=True), (long,))
        elif row.pooled == "sum":
            found[name] = Number(0 if split(name)[1] else row.low, LARGEST_COUNT, whole=True)
        else:
            found[name] = Number(row.low, row.high, nan=not row.diverges, rounding=ROUNDING)
    return found


def contradictions(metrics: Mapping[str, Any]) -> list[str]:
    """Return what of an evaluation cannot be true at once; its values are what `schema_like` says."""
    parts = by_label(metrics)
    whole = parts.pop("", {})
    wrong = [f"{text}, of label {label!r}" for label, own in parts.items() for text in _contradictions(own)]
    wrong += [f"n of label {label!r} is {own['n']}, of {whole['n']}"
              for label, own in parts.items() if own.get("n", 0) > whole.get("n", 0)]  # fmt: skip
    return wrong + _contradictions(whole)


def _contradictions(metrics: Mapping[str, Any]) -> list[str]:
    """Return what cannot be true at once of one label."""
    wrong: list[str] = []
    sums: dict[str, tuple[str, ...]] = {"n": ("class-counts",)}
    if "positives" in metrics:
        sums = {"n": ("positive-scores", "negative-scores"), "positives": ("positive-scores",)}
    for name, parts in sums.items():
        if name in metrics and all(part in metrics for part in parts):
            total = sum(sum(metrics[part]) for part in parts)
            if total != metrics[name]:
                wrong.append(f"{name} = {metrics[name]}, and {' and '.join(parts)} add up to {total}")
    if {"class-correct", "class-counts"} <= metrics.keys():
        pairs = zip(metrics["class-correct"], metrics["class-counts"], strict=True)
        wrong += [f"class-correct has {right} of {total}" for right, total in pairs if right > total][:1]
    return wrong


def undefined(metrics: Mapping[str, Any]) -> list[str]:
    """Return the metrics that are NaN and need not be: a ranking is not defined on one class, all others always are."""
    parts = by_label(metrics)
    one_class = {label: own.get("positives") in (0, own.get("n")) for label, own in parts.items()}
    if len(parts) > 1:
        one_class[""] = all(one for label, one in one_class.items() if label)
    numbers = {name: value for name, value in metrics.items() if isinstance(value, float) and math.isnan(value)}
    return [name for name in numbers if not (one_class[split(name)[1]] and metric(name).pooled == "scores")]


def histogram(scores: np.ndarray) -> list[int]:
    """Count logits on the fixed grid of ``BINS`` bins over ±``LIMIT``."""
    scores = np.nan_to_num(scores, nan=0.0, posinf=LIMIT, neginf=-LIMIT)
    bins = np.clip((scores + LIMIT) * (BINS / (2 * LIMIT)), 0, BINS - 1).astype(np.int64)
    return np.bincount(bins, minlength=BINS).tolist()  # type: ignore[no-any-return]


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
