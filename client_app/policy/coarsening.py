"""Coarsening of an evaluation, so that it reveals groups of samples but no single one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.problems.histogram import Histogram
from edelweiss.problems.metrics import metric
from edelweiss.problems.pooling import pool

if TYPE_CHECKING:
    from edelweiss.problems import Metrics


def coarse(metrics: Metrics, count: int, fewest: int) -> Metrics:
    """Return the evaluation that a site reports.

    Histograms of scores are merged until every bin has at least ``fewest`` samples; counts of correct predictions are
    rounded to multiples of it; AUROC, average precision and accuracies follow from these. Means are rounded to digits
    according to the count.

    Parameters
    ----------
    metrics : Metrics
        What ``Problem.metrics`` returned.
    count : int
        Held-out samples.
    fewest : int
        Least samples of a group, of one class.
    """
    report: Metrics = {}
    groups: Metrics = {}
    counted = any(isinstance(value, bytes | list) for value in metrics.values())  # maml counts nothing
    for name, value in metrics.items():
        if isinstance(value, bytes):
            groups[name] = merged(Histogram.unpacked(value), fewest).packed()
        elif isinstance(value, list):
            groups[name] = value
        elif counted and metric(name).pooled in ("scores", "classes"):
            groups[name] = math.nan  # follows from the counts
        elif metric(name).pooled == "sum":
            report[name] = value
        elif metric(name).pooled == "most":
            report[name] = groups[name] = fewest
        else:
            report[name] = rounded(value, fewest / count, share=metric(name).better == "up")
    if "class-correct" in groups:
        counts = np.array([groups["class-correct"], groups["class-counts"]])
        groups["class-correct"] = np.minimum(fewest * np.rint(counts[0] / fewest), counts[1]).astype(int).tolist()
    follows = {name: value for name, value in pool([groups]).items() if name in groups and name not in report}
    return {**groups, **follows, **report}


def merged(histogram: Histogram, fewest: int) -> Histogram:
    """Merge neighbouring bins until each counts at least ``fewest``.

    A large enough bin keeps its place and absorbs the few before it. Other bins are grouped as soon as they are
    enough; the group's place is the bin in its range divisible by the highest power of 2, which reveals little. The
    remainder joins the last group. The order is preserved, and fewer than 3 ``fewest`` samples cross any point.

    Parameters
    ----------
    histogram : Histogram
        Empty, or at least ``fewest`` samples.
    fewest : int
        At least 1.
    """
    places: list[int] = []
    sizes: list[int] = []
    first, few = 0, 0
    for bin_, count in zip(histogram.bins.tolist(), histogram.counts.tolist(), strict=True):
        first, few = (first if few else bin_), few + count
        if few >= fewest:
            places.append(bin_ if count >= fewest else _between(first, bin_))
            sizes.append(few)
            few = 0
    if few:
        sizes[-1] += few
    return Histogram(np.array(places, np.int64), np.array(sizes, np.int64))


def _between(low: int, high: int) -> int:
    """Return the number in (low, high] that is divisible by the highest power of 2."""
    zeros = (low ^ high).bit_length() - 1 if (low < 0) == (high < 0) else 64
    return high >> zeros << zeros


def rounded(value: float, part: float, *, share: bool) -> float:
    """Round to a multiple of the smallest power of 2 that is at least this part of the value, or for a share, of 1."""
    if not math.isfinite(value):
        return value
    step = 2.0 ** math.ceil(math.log2(part * (1 if share else max(abs(value), 1e-12))))
    return step * round(value / step)
