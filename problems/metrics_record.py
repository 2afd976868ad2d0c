"""Validation of a received evaluation: each value, and their consistency."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from edelweiss.common import Schema
from edelweiss.common.schema import binary, number, several, whole
from edelweiss.problems.histogram import ENTRY
from edelweiss.problems.histogram import wrong as wrong_histogram
from edelweiss.problems.metrics import HISTOGRAMS, accuracy, by_label, metric, split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edelweiss.problems.base import Metrics

LARGEST_COUNT = 2**53  # integers up to here are exact as floats
ROUNDING = 1e-9  # tolerance for sums of shares


COUNTS = ("n", "positives", "fewest", "class-counts")


class Form:
    """The form of an evaluation, by an example; what a run's evaluations are held against.

    Attributes
    ----------
    schema : Schema
        See `record_schema`.
    diverging : list of str
        Metrics that grow without bound when a run diverges.
    counts : list of str
        Counts, which stay the same for a whole run.
    """

    def __init__(self, example: Metrics) -> None:
        self.schema = record_schema(example)
        self.diverging = [name for name in example if metric(name).diverges]
        self.counts = [name for name in example if split(name)[0] in COUNTS]


def record_schema(example: Metrics) -> Schema:
    """Return the schema of an evaluation with the metrics of ``example``, each in its range. Lists are counts.

    Raises
    ------
    ProblemError
        If a metric has no row.
    """
    found: dict[str, Any] = {}
    for name, value in example.items():
        row = metric(name)
        if isinstance(value, bytes):
            found[name] = binary(ENTRY)
        elif row.pooled == "only":
            long = len(value) if isinstance(value, list) else 0
            found[name] = several(whole(0, LARGEST_COUNT), (long,))
        elif row.pooled in ("sum", "most"):
            low = 0 if split(name)[1] and row.pooled == "sum" else int(row.low)
            found[name] = whole(low, LARGEST_COUNT)
        else:
            found[name] = number(row.low - ROUNDING, row.high + ROUNDING, nan=not row.diverges)
    return Schema(found)


def contradictions(metrics: Mapping[str, Any]) -> list[str]:
    """List the contradictions in an evaluation whose values satisfy `record_schema`."""
    parts = by_label(metrics)
    whole = parts.pop("", {})
    wrong = [f"{text}, of label {label!r}" for label, own in parts.items() for text in _contradictions(own)]
    wrong += [
        f"n of label {label!r} is {own['n']}, of {whole['n']}"
        for label, own in parts.items()
        if own.get("n", 0) > whole.get("n", 0)
    ]
    return wrong + _contradictions(whole)


def _contradictions(metrics: Mapping[str, Any]) -> list[str]:
    wrong: list[str] = []
    if "class-counts" in metrics and (total := sum(metrics["class-counts"])) != metrics.get("n", total):
        wrong.append(f"n = {metrics['n']}, and class-counts add up to {total}")
    if {"n", "positives", "fewest", *HISTOGRAMS} <= metrics.keys():
        n, positives = metrics["n"], metrics["positives"]
        if positives > n:
            return [*wrong, f"n = {n}, of which positives = {positives}"]
        for name, count in zip(HISTOGRAMS, (positives, n - positives), strict=True):
            if text := wrong_histogram(metrics[name], count, metrics["fewest"]):
                wrong.append(f"{name}: {text}")
    if {"class-correct", "class-counts"} <= metrics.keys():
        right, total = metrics["class-correct"], metrics["class-counts"]
        if more := [pair for pair in zip(right, total, strict=True) if pair[0] > pair[1]]:
            return [*wrong, "class-correct has {} of {}".format(*more[0])]
        for name, value in accuracy(right, total).items():
            if name in metrics and not math.isclose(metrics[name], value, abs_tol=ROUNDING) and sum(total):
                wrong.append(f"{name} = {metrics[name]:g}, and by class-correct it is {value:g}")
    return wrong


def undefined(metrics: Mapping[str, Any]) -> list[str]:
    """List the metrics that are NaN without need: only rankings of a single class may be undefined."""
    parts = by_label(metrics)
    one_class = {label: own.get("positives") in (0, own.get("n")) for label, own in parts.items()}
    if len(parts) > 1:
        one_class[""] = all(one for label, one in one_class.items() if label)
    numbers = {name: value for name, value in metrics.items() if isinstance(value, float) and math.isnan(value)}
    return [name for name in numbers if not (one_class[split(name)[1]] and metric(name).pooled == "scores")]
