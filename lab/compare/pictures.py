"""Curves of groups of runs, with bands, in colours that colour-blind readers tell apart."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from edelweiss.lab.compare import AGAINST
from edelweiss.lab.compare.runs import metric, name_of
from edelweiss.lab.report.drawing import drawn, save
from edelweiss.lab.report.figures import BLUE, GREEN, VERMILLION
from edelweiss.problems.metrics import METRICS, clip_to_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from edelweiss.lab.compare.groups import Group

COLOURS = (BLUE, VERMILLION, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # the others of the same palette
LINES = ("-", "--", ":", "-.")  # the colours, then again with another style
KINDS = {"bytes": "megabytes", "gradients": "gradients", "seconds": "seconds"}  # of `Run.spending`


def style(place: int) -> dict[str, Any]:
    """Return the colour and the kind of line of a group by its place."""
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": LINES[place // len(COLOURS) % len(LINES)]}


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation; the latter is 0 of a single value."""
    if not values:
        return math.nan, 0.0
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def curves(axes: Axes, groups: Sequence[Group], path: str, against: str = "rounds") -> None:
    """Draw a line per group, the mean of its runs, and a band of one standard deviation to either side,
    within what the metric can be.

    What the runs had spent by a round is averaged as well.
    """
    for place, group in enumerate(groups):
        lines = []
        for run in group.converged:
            costs = dict(run.spending(KINDS[against])) if against in KINDS else {}
            for record in run.outcome.records:
                r = record["round"]
                lines.append((r, metric(record, path), costs.get(r, float(r))))
        by_round = pd.DataFrame(lines, columns=["round", "value", "spent"], dtype=float).dropna().groupby("round")
        counts = by_round.size()
        rounds = counts.index[counts == counts.max()]  # some runs may be evaluated more often
        means, deviations = by_round["value"].mean()[rounds], by_round["value"].std().fillna(0.0)[rounds]
        places = by_round["spent"].mean()[rounds]
        kind = style(place)
        axes.plot(places, means, linewidth=1.5, label=group.label, **kind)
        low, high = (clip_to_range(name_of(path), np.array(means + side * deviations)) for side in (-1, 1))
        if len(rounds) == 1:  # neither a line nor a band has a width there
            bars = [means - low, high - means]
            axes.errorbar(places, means, bars, fmt="o", color=kind["color"], markersize=4, capsize=2)
        axes.fill_between(places, low, high, color=kind["color"], alpha=0.15, linewidth=0)


def draw(groups: Sequence[Group], wanted: Mapping[str, str], against: str, path: Path) -> None:
    """Draw a panel per metric, path → heading, and write it as PNG and, beside it, as PDF."""
    save(drawn(lambda: panels(groups, wanted, against)), path)


def panels(groups: Sequence[Group], wanted: Mapping[str, str], against: str) -> Figure:
    """Draw a panel per metric, path → heading, and a legend of several groups below them."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(max(4.5 * len(wanted), 6.0), 3.5), layout="constrained")
    row = figure.subplots(1, len(wanted), squeeze=False)[0]
    for axes, (path, heading) in zip(row, wanted.items(), strict=True):
        curves(axes, groups, path, against)
        if (metric_row := METRICS.get(name_of(path))) and metric_row.log:
            axes.set_yscale("log", nonpositive="clip")
        axes.set(xlabel=AGAINST[against], ylabel=heading)
        axes.margins(x=0.02)
        if against == "rounds":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25, linewidth=0.6)
    if len(groups) > 1:
        handles = row[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=min(3, len(groups)), fontsize=8.5, frameon=False)
    return figure
