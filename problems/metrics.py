"""The table of metrics, their computation at a site, and their formatting.

AUROC and average precision are scikit-learn's. A problem computes them exactly; a hospital may report coarser ones, see
`client_app.policy.coarsening`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edelweiss.common import PlugInError, Registry
from edelweiss.common.identity import name_of
from edelweiss.problems.errors import ProblemError
from edelweiss.problems.histogram import Histogram
from edelweiss.problems.roc import cumulative_counts, partial_auroc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from edelweiss.problems.base import Metrics


@dataclass(frozen=True)
class Metric:
    """Properties of a metric.

    Attributes
    ----------
    label : str
        The name for display.
    better : str
        ``"up"`` or ``"down"``; empty for a count.
    pooled : str
        How it is pooled over sites: ``"mean"``, weighted by sample counts; ``"sum"``; ``"scores"`` or ``"classes"``:
        recomputed from the summed histograms of scores, or the summed class counts; ``"most"``: the maximum;
        ``"only"``: an input of these, dropped after pooling.
    diverges : bool
        Whether it grows without bound when a run diverges, so that ``loss-bound`` applies.
    headline : bool
        Whether it appears in round lines, tables and curves.
    log : bool
        Whether its curve has a logarithmic axis.
    low, high : float
        Its range.
    of : callable, optional
        Definition of a metric from outside: a function of labels (1 and 0), scores and weights (None: all count the
        same), each of shape (n,). It is called for a site's own samples, and for the summed histograms of all sites.
    """

    label: str
    better: str = ""
    pooled: str = "mean"
    diverges: bool = False
    headline: bool = False
    log: bool = False
    low: float = -math.inf
    high: float = math.inf
    of: Callable[[np.ndarray, np.ndarray, np.ndarray | None], float] | None = None


_BUILT_IN: dict[str, Metric] = {
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
"""Every metric that a problem may report, in display order; others are refused.

With several labels, each label's metrics are named ``"auroc.Edema"``; ``"auroc"`` and ``"auprc"`` are the means over
the labels with samples of both classes, and there is no overall ``"positives"``.
"""

BINNED = 0
"""In place of ``fewest``, of all sites together: samples are counted in the bins of a grid, each within its own."""

RANKINGS = ("auroc", "auprc")
PARTIAL = "partial-auroc"
TIES = {kind: f"{kind}-ties" for kind in (*RANKINGS, PARTIAL)}
"""The largest error of each, due to the unknown order within the groups of sites that aggregate scores."""
HISTOGRAMS = ("positive-scores", "negative-scores")


class _Headline(Collection[str]):
    """The metrics in a round's line, in the order of `METRICS`, which may grow."""

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, row in METRICS.items() if row.headline])

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def __len__(self) -> int:
        return len(set(self))


HEADLINE: Collection[str] = _Headline()


def _accept(name: str, thing: Any) -> tuple[str, Metric]:
    """Check a metric from outside: a function of labels, scores and weights, or a row with one; it has its name."""
    of = thing.of if isinstance(thing, Metric) else thing
    own = getattr(of, "__name__", "<")
    if "<" in own and callable(of):  # a lambda, or a partial: dots and commas are not for names of metrics
        own = name or name_of(of)
        own = re.sub(r"[^\w-]+", "-", own.partition(":")[2].rpartition("<locals>.")[2].replace(".", "p")).strip("-")
    if not isinstance(thing, Metric) and callable(thing):
        thing = Metric(own.replace("_", " "), "up", "scores", headline=True, of=thing)
    if not isinstance(thing, Metric) or thing.of is None or thing.pooled != "scores":
        raise PlugInError(
            f"metric {name or type(thing).__name__}: must be a function of labels, scores and weights, or an "
            'edelweiss.Metric with such a function as `of` and pooled="scores"'
        )
    return own.replace("_", "-"), thing


METRICS: Registry[Metric] = Registry("metric", _BUILT_IN, _accept)


def of_own(
    names: Iterable[str], labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None
) -> dict[str, float]:
    """Return metrics from outside; NaN where one class is missing.

    Raises
    ------
    ProblemError
        When one cannot be computed, or is no number.
    """
    found: dict[str, float] = {}
    counted = labels if weights is None else labels[weights > 0]
    both = len(set(counted.tolist())) == 2
    for name in names:
        of = METRICS[name].of
        assert of is not None, "others are refused with the run-config"
        try:
            found[name] = float(of(labels, scores, weights)) if both else math.nan
        except Exception as error:
            raise ProblemError(f"metric {name!r} cannot be computed: {type(error).__name__}: {error}") from error
        if both and math.isnan(found[name]):
            raise ProblemError(
                f"metric {name!r} is nan on {len(labels)} samples of both classes: must be a number there"
            )
    return found


def metric(name: str) -> Metric:
    """Return the row of a metric, possibly of one label.

    Raises
    ------
    ProblemError
        If it has none.
    """
    kind, _ = split(name)
    try:
        return METRICS[kind]
    except KeyError:
        text = f"the metric {kind!r} has no row in problems/metrics.py: add one to METRICS"
        raise ProblemError(text, key="metric", value=kind) from None


def clip_to_range(name: str, values: np.ndarray) -> np.ndarray:
    """Clip values to the range of a metric; an empty name has no range."""
    return np.clip(values, METRICS[name].low, METRICS[name].high) if name else values


@lru_cache(maxsize=1024)
def split(name: str) -> tuple[str, str]:
    """Split a name like ``"auroc.Edema"`` into metric and label; the label may be empty."""
    kind, _, label = name.partition(".")
    return kind, label


def by_label(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Group metrics by label, with names without the label; the empty label has the others."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        kind, label = split(name)
        found.setdefault(label, {})[kind] = value
    return found


def merge_labels(each: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the metrics of several labels into one evaluation: the means, and each label's own."""
    outside = (name for name, row in METRICS.items() if row.of)
    kinds = [kind for kind in (*RANKINGS, *TIES.values(), *outside) if all(kind in own for own in each.values())]
    means = {kind: nanmean([own[kind] for own in each.values()]) for kind in kinds}
    return means | {f"{kind}.{label}": value for label, own in each.items() for kind, value in own.items()}


def nanmean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def shown(value: float | None, off: float | None = 0.0, digits: int = 4) -> str:
    """Format a metric with its known digits only; a dash if it is undefined.

    `off` is its largest error, such as ``auroc-ties``: a share without a known digit is shown as a range, one that may
    be anything as a dash. `digits` are decimal places if all are known; small numbers have significant digits instead.
    """
    if value is None or math.isnan(value):
        return "-"
    if off and off >= 0.5 * 10**-digits:
        known = math.ceil(-math.log10(2 * off)) - 1  # decimal places with half a unit above the error
        if known > 0:
            return f"{value:.{known}f}"
        low, high = max(0.0, value - off), min(1.0, value + off)
        return f"{low:.2f} to {high:.2f}" if low > 0 or high < 1 else "-"
    return f"{value:.3e}" if value and abs(value) < 10 ** (1 - digits) and digits > 2 else f"{value:.{digits}f}"


def format_named(metrics: Mapping[str, Any], name: str) -> str:
    """Format a metric of an evaluation with its known digits only."""
    return shown(metrics.get(name), ties(metrics, name))


def ties(metrics: Mapping[str, Any], name: str) -> float:
    """Return the largest error of a metric of an evaluation, see `TIES`; 0 by default."""
    kind, label = split(name)
    found = metrics.get(f"{TIES[kind]}.{label}" if label else TIES[kind]) if kind in TIES else 0.0
    return found if isinstance(found, int | float) and not math.isnan(found) else 0.0


def ranking(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> dict[str, float]:
    """Compute the area under the ROC curve and average precision, of labels 1 and 0, scores and weights, each (n,).

    Scores may be any monotone ones, weights are non-negative; both are NaN if a class is missing.
    """
    counted = cumulative_counts(labels, scores, weights)
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


def ranked(labels: np.ndarray, scores: np.ndarray, *, partial: bool = False, own: Iterable[str] = ()) -> Metrics:
    """Return the metrics of scores: their ranking, counts, and the histograms for pooling.

    Samples are as in `ranking`, possibly none. `partial` adds the partial AUROC, `own` metrics from outside.
    """
    return {
        **ranking(labels, scores),
        **({PARTIAL: partial_auroc(labels, scores)} if partial else {}),
        **of_own(own, labels, scores),
        "n": len(labels),
        "positives": int(labels.sum()),
        "fewest": 1,
        "positive-scores": Histogram.of(scores[labels == 1]).packed(),
        "negative-scores": Histogram.of(scores[labels == 0]).packed(),
    }


def class_metrics(labels: Tensor, logits: Tensor) -> Metrics:
    """Compute accuracy, that of the worst class, and class counts for pooling, of labels (n,) and logits (n, C)."""
    classes = logits.shape[1]
    right = torch.bincount(labels[logits.argmax(1) == labels], minlength=classes).tolist()
    total = torch.bincount(labels, minlength=classes).tolist()
    return {**accuracy(right, total), "class-correct": right, "class-counts": total}


def accuracy(right: Sequence[int], total: Sequence[int]) -> dict[str, float]:
    """Compute the share of correct predictions, over all samples and in the worst class; NaN without samples."""
    if not sum(total):
        return {"accuracy": math.nan, "worst-class": math.nan}
    worst = min(r / t for r, t in zip(right, total, strict=True) if t)
    return {"accuracy": sum(right) / sum(total), "worst-class": worst}
