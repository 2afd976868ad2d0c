"""The picture of a study: curves over rounds, or final numbers, side by side or along an axis; spreads as in tables."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from benchmarks.sweep import Sweep
from edelweiss.lab.compare.pictures import curves, spread, style
from edelweiss.lab.compare.runs import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from benchmarks.studies import Study
    from benchmarks.tables import Cell, Row, Tables

CAPTIONS = {
    "curves": "Lines: means. Bands: ± one standard deviation.",
    "points": "Points: means. Bars: ± one standard deviation.",
    "axis": "Points: means after the last round. Bars: ± one standard deviation.",
}


def draw(sweep: Sweep, tables: Tables, path: Path) -> None:
    """Draw a study's picture."""
    from PIL import Image

    study = sweep.study
    if study.picture == "points":
        figure, axes = points(next(iter(tables.values())), study.report)
    elif study.picture == "axis":
        figure, axes = axis(study, tables)
    else:
        wanted = {path: title for path, title in study.report.items() if title in (study.curves or (title,))}
        figure, axes = panels(tables, wanted, len([*study.compare.values()][-1]) if study.compare else 1)
    handles, labels = axes.get_legend_handles_labels()
    title = CAPTIONS[study.picture]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, title=title, title_fontsize=8)
    figure.suptitle(textwrap.fill(sweep.title, int(11 * figure.get_figwidth())), fontsize=10)
    figure.savefig(path, metadata={"Software": None})
    with Image.open(path) as picture:  # a palette takes a third of the bytes
        palette = picture.convert("RGB").quantize(128)
    palette.save(path, optimize=True)


def panels(tables: Tables, wanted: Mapping[str, str], columns: int) -> tuple[Figure, Axes]:
    """Draw a panel per cell and metric.

    From left to right the values of the last key, from top to bottom those of the others, each with all metrics.
    """
    from matplotlib.figure import Figure

    cells = list(tables.items())
    blocks = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    lines = [(block, *metric) for block in blocks for metric in wanted.items()]
    scale = 0.8 if len(blocks) > 1 else 1.0
    size = (max(4.6 * scale * columns, 6.5), 3.3 * scale * len(lines) + 1.0)
    figure = Figure(figsize=size, layout="constrained", dpi=100)
    grid = figure.subplots(len(lines), columns, squeeze=False, sharey="row")
    for line, (block, path, heading) in enumerate(lines):
        for column, (cell, rows) in enumerate(block):
            axes = grid[line][column]
            if "distance" in path or "error" in path:
                axes.set_yscale("log")
            curves(axes, rows, path)
            axes.set(xlabel="round", ylabel=heading if column == 0 else "", title=shown(dict(cell)))
            axes.grid(alpha=0.3)
    return figure, grid[0][0]


def points(rows: Sequence[Row], report: Mapping[str, str]) -> tuple[Figure, Axes]:
    """Draw the final numbers of each method side by side, with bars of one standard deviation to either side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(8, 1.1 * len(report)), 4), layout="constrained", dpi=100)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        spreads = [spread(row.values(path)) for path in report]
        shift = (place - (len(rows) - 1) / 2) * 0.8 / max(1, len(rows))
        axes.errorbar(
            [column + shift for column in range(len(report))],
            [mean for mean, _ in spreads],
            [deviation for _, deviation in spreads],
            fmt="o",
            markersize=4,
            label=row.method.label,
            color=style(place)["color"],
        )
    axes.set_xticks(range(len(report)), list(report.values()))
    axes.grid(alpha=0.3)
    axes.set_ylabel("mean ± standard deviation")
    return figure, axes


def axis(study: Study, tables: Tables) -> tuple[Figure, Axes]:
    """Draw the first metric after the last round against the last key: a panel per choice of the other keys."""
    from matplotlib.figure import Figure

    path, heading = next(iter(study.report.items()))
    blocks: dict[Cell, list[tuple[Any, list[Row]]]] = defaultdict(list)
    for cell, rows in tables.items():
        blocks[cell[:-1]].append((cell[-1][1], rows))
    key = next(iter(tables))[-1][0]
    figure = Figure(figsize=(max(4.2 * len(blocks), 6.5), 4.2), layout="constrained", dpi=100)
    grid = figure.subplots(1, len(blocks), squeeze=False, sharey="row")[0]
    for axes, (others, line) in zip(grid, blocks.items(), strict=True):
        values = [value for value, _ in line]
        numbers = all(isinstance(value, int | float) and value > 0 for value in values)
        places = values if numbers else list(range(len(values)))  # side by side, if not on a logarithmic scale
        for place, first in enumerate(line[0][1]):
            if not any(rows[place].values(path) for _, rows in line):  # it has no such metric
                continue
            means, deviations = zip(*(spread(rows[place].values(path)) for _, rows in line), strict=True)
            kind = {"marker": "o", "markersize": 4, "capsize": 2, **style(place)}
            axes.errorbar(places, means, deviations, label=first.method.label, **kind)
        if places is values:
            axes.set_xscale("log", base=2)
        axes.set_xticks(places, [study.named({key: value}).rpartition("=")[2] for value in values])
        axes.set(xlabel=key, ylabel=heading if axes is grid[0] else "", title=study.named(dict(others)))
        axes.grid(alpha=0.3)
    return figure, grid[0]
