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
LABEL = 8.5  # points
MOST_LABELS = 10  # beside the lines; of more there is a legend
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


def label_lines(axes: Axes, dpi: float) -> None:
    """Write each line's label beside its end, in its colour; labels that would overlap are moved apart."""
    from matplotlib.colors import to_rgb

    lines = [line for line in axes.lines if len(np.atleast_1d(line.get_xdata())) and str(line.get_label())[0] != "_"]
    ends = [tuple(float(np.atleast_1d(data)[-1]) for data in (line.get_xdata(), line.get_ydata())) for line in lines]
    height = 1.3 * LABEL / 72 * dpi
    (left, low), (right, high) = (axes.transAxes.transform((end, end)) for end in (0, 1))
    order = sorted(range(len(lines)), key=lambda place: ends[place][1])
    wanted = [float(axes.transData.transform(ends[place])[1]) for place in order]
    for place, y in zip(order, apart(wanted, height, low, high), strict=True):
        colour = lines[place].get_color()
        at = 1 + 0.7 * height / (right - left), (y - low) / (high - low)
        axes.annotate(
            str(lines[place].get_label()),
            (ends[place][0], ends[place][1]),
            at,
            textcoords="axes fraction",
            color=tuple(0.85 * part for part in to_rgb(colour)),
            fontsize=LABEL,
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "linestyle": ":", "relpos": (0, 0.5)},
        )


def apart(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Move places, in ascending order, at least so far apart, as little as the squares of the moves add up to."""
    blocks: list[list[float]] = []  # of places that touch, each less what the ones below it take
    for index, place in enumerate(places):
        blocks.append([place - index * least])
        while len(blocks) > 1 and statistics.mean(blocks[-2]) > statistics.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    means = [statistics.mean(block) for block in blocks for _ in block]
    above = [max(mean, low) + index * least for index, mean in enumerate(means)]
    return [min(place, high - (len(above) - 1 - index) * least) for index, place in enumerate(above)]


def draw(groups: Sequence[Group], wanted: Mapping[str, str], against: str, path: Path) -> None:
    """Draw a panel per metric, path → heading, and write it as PNG and, beside it, as PDF."""
    save(drawn(lambda: panels(groups, wanted, against)), path)


def panels(groups: Sequence[Group], wanted: Mapping[str, str], against: str) -> Figure:
    """Draw a panel per metric, path → heading."""
    from matplotlib.figure import Figure
    from matplotlib.textpath import TextPath
    from matplotlib.ticker import MaxNLocator

    single, labelled = len(groups) == 1, 1 < len(groups) <= MOST_LABELS
    widths = [TextPath((0, 0), group.label, size=LABEL).get_extents().width / 72 for group in groups]
    left, plot, beside = 0.85, 3.6, max(widths) + 0.3 if labelled else 0.25
    below = 0.55 + (0 if single or labelled else 0.2 * math.ceil(len(groups) / 3) + 0.2)
    size = (len(wanted) * (left + plot + beside), below + 2.9)
    figure = Figure(figsize=size)
    every = []
    for place, (metric_path, heading) in enumerate(wanted.items()):
        corner = place * (left + plot + beside) + left
        axes = figure.add_axes((corner / size[0], below / size[1], plot / size[0], 2.7 / size[1]))
        curves(axes, groups, metric_path, against)
        row = METRICS.get(name_of(metric_path))
        if row and row.log:
            axes.set_yscale("log", nonpositive="clip")
        axes.set(xlabel=AGAINST[against], ylabel=heading)
        axes.margins(x=0.02)
        if against == "rounds":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25, linewidth=0.6)
        every.append(axes)
    if labelled:
        figure.draw_without_rendering()  # the limits of the axes are known then
        for axes in every:
            label_lines(axes, figure.dpi)
    elif not single:
        figure.legend(*every[0].get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=LABEL, frameon=False)
    return figure
