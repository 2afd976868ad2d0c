"""What a study's runs say: a table as CSV and as Markdown, and a picture.

The CSV has a line per run, tuning runs too. The Markdown shows mean ± standard deviation over the repeats, what a site
computed and exchanged, and how far each method was when it had used up the budget of one of them.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.reproduce import Job, Outcome, Sweep, combinations, final, metric, parsed, shown
from benchmarks.studies import Method, Settings

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

Runs = list[tuple[Job, Outcome]]
Cell = tuple[tuple[str, Any], ...]  # keys that are compared, and a value of each

COSTS = {"gradients": "gradients", "samples": "sample gradients", "megabytes": "MB"}
STYLES = ("-", "--", ":")  # ten colours, then again with another style


@dataclass
class Row:
    """A method in one table: its runs, and why some are missing."""

    method: Method
    chosen: Settings | None
    runs: Runs = field(default_factory=list)
    missing: int = 0

    @property
    def converged(self) -> Runs:
        """The runs that did not diverge."""
        return [(job, outcome) for job, outcome in self.runs if not outcome.diverged]

    def values(self, path: str) -> list[float]:
        """Return a metric at the end of each run that has it."""
        found = (final(outcome, path) for _, outcome in self.runs)
        return [value for value in found if value is not None and math.isfinite(value)]

    def rounds_to(self, path: str, target: float) -> list[float]:
        """Return in which round a metric reached a target, of each run that came so far."""
        reached = (
            next((record["round"] for record in outcome.records if (metric(record, path) or 0.0) >= target), None)
            for _, outcome in self.runs
        )
        return [float(first) for first in reached if first is not None]

    def spent(self, kind: str) -> float:
        """Return what a site spent in a whole run, on average; 0 without a run."""
        totals = [curve[-1][1] for run in self.converged if (curve := spending(*run, kind))]
        return statistics.mean(totals) if totals else 0.0

    def within(self, path: str, kind: str, budget: float) -> float | None:
        """Return a metric's mean over the runs, each as it was last evaluated before it exceeded a budget."""
        found = []
        for job, outcome in self.converged:
            lines = zip(outcome.records, spending(job, outcome, kind), strict=True)
            affordable = [value for record, (_, total) in lines if total <= budget * 1.001
                          and (value := metric(record, path)) is not None]  # fmt: skip
            if not affordable:
                return None
            found.append(affordable[-1])
        return statistics.mean(found) if found else None


Tables = dict[Cell, list[Row]]


def spending(job: Job, outcome: Outcome, kind: str) -> list[tuple[int, float]]:
    """Return (round, what a site had spent by then): gradients, samples (in batches of the run), or megabytes."""
    sites, total, curve = int(parsed(job.settings).sites), 0.0, []
    for record in outcome.records:
        if kind == "megabytes":
            total += (record["bytes-down"] + record["bytes-up"]) / 1e6
        else:
            total += record[kind]
        curve.append((record["round"], total / sites))
    return curve


def gather(sweep: Sweep) -> Tables:
    """Read the reported runs: rows by cell, a cell per combination of what is compared."""
    tables: Tables = {tuple(cell.items()): [] for cell in combinations(sweep.study.compare)}
    for method in sweep.study.methods:
        point = sweep.choose(method)
        rows = {cell: Row(method, point) for cell in tables}
        for job in sweep.reported(method, point) if point is not None else ():
            row, outcome = rows[tuple(job.cell.items())], sweep.outcome(job)
            if outcome is None:
                row.missing += 1
            else:
                row.runs.append((job, outcome))
        for cell, row in rows.items():
            tables[cell].append(row)
    return tables


def write(sweep: Sweep, folder: Path) -> str:
    """Write NAME.csv, NAME.md and NAME.png, and the table into ../results.md where that has a place for it.

    Returns the Markdown.
    """
    name = sweep.study.name + ("-full" if sweep.full else "")
    folder.mkdir(parents=True, exist_ok=True)
    tables = gather(sweep)
    text = markdown(sweep, tables)
    picture = f"\n![{sweep.study.title}]({{}}{name}.png)\n" if drawn(tables) else ""
    (folder / f"{name}.md").write_text(text + picture.format(""), encoding="utf-8")
    lines = csv_lines(sweep, tables)
    if lines:
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            names = list(dict.fromkeys(key for line in lines for key in line))
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    if picture:
        draw(sweep, tables, folder / f"{name}.png")
    insert(folder.parent / "results.md", name, text + picture.format(f"{folder.name}/"))
    return text


def drawn(tables: Tables) -> bool:
    """Return whether there is anything to draw."""
    return any(row.converged for rows in tables.values() for row in rows)


def insert(page: Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``, if a page has those lines."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin) if page.exists() else ("", "", "")
    _, closed, after = rest.partition(end)
    if found and closed:
        page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


# ---------------------------------------------------------------------- CSV


def csv_lines(sweep: Sweep, tables: Tables) -> list[dict[str, Any]]:
    """Return a line per run that is there: first the tuning runs, then the reported ones."""
    study, lines = sweep.study, []
    runs = [
        ("tuning", job, outcome)
        for method in study.methods
        for job in sweep.tuning(method)
        if (outcome := sweep.outcome(job))
    ]
    runs += [("reported", job, outcome) for rows in tables.values() for row in rows for job, outcome in row.runs]
    for use, job, outcome in runs:
        cell = {key: job.settings.get(key, "") for key in study.compare}
        line: dict[str, Any] = {"use": use, "method": job.method.label, "algorithm": job.method.algorithm, **cell}
        line |= {"step sizes": shown(job.point), **job.repeat}
        line |= {"rounds": len(outcome.records), "outcome": "diverged" if outcome.diverged else "done"}
        line[f"held out: {study.select}"] = final(outcome, study.select)
        line |= {heading: final(outcome, path) for path, heading in study.report.items()} if use == "reported" else {}
        costs = {kind: spending(job, outcome, kind) for kind in COSTS}
        line |= {f"{COSTS[kind]} per site": round(curve[-1][1], 6) for kind, curve in costs.items() if curve}
        lines.append(line)
    return lines


# ---------------------------------------------------------------------- Markdown


def markdown(sweep: Sweep, tables: Tables) -> str:
    """Return the tables with what one has to know to read them."""
    study = sweep.study
    command = f"python -m benchmarks.reproduce {study.name}{' --full' if sweep.full else ''}"
    repeats = " × ".join(f"{len(values)} {key}s" for key, values in study.repeat.items())
    parts = [f"<!-- Written by `{command}`; do not edit. -->", f"`{command}`: {study.title}."]
    if not sweep.full and study.note:
        parts.append(study.note)
    if any(sweep.tuning(method) for method in study.methods):
        first = shown({key: values[0] for key, values in study.compare.items()})
        parts.append(
            f"Step sizes: for each method the best of its own grid of {len(sweep.grid(study.methods[0]))} points, by "
            f"`{study.select}` (the samples that the sites hold out) at seed {study.tuning_seed}"
            + (f" and {first}" if first else "")
            + ", which no number below uses."
        )
    parts.append(f"Mean ± standard deviation over {repeats}.")
    if study.reference:
        parts.append(
            f"The columns on the right: {next(iter(study.report.values()))} at the last evaluation before a method had "
            f"used more sample gradients, or more bytes, than {study.reference} in its whole run."
        )
    if study.paper:
        parts.append(study.paper_note)
    versions = {outcome.version for rows in tables.values() for row in rows for _, outcome in row.runs}
    if len(versions) > 1:
        parts.append(f"These runs are of {len(versions)} versions of the code: {', '.join(sorted(versions))}.")
    if sweep.changes:
        parts.append(f"Changed by hand: {shown(sweep.changes)}.")
    if len(study.compare) > 1:
        parts.append("\n".join(table(sweep, tables, tuple(study.compare))))
    else:
        for cell, rows in tables.items():
            if cell:
                parts.append(f"**{shown(dict(cell))}**")
            parts.append("\n".join(table(sweep, {cell: rows})))
    return "\n\n".join(parts) + "\n"


def table(sweep: Sweep, tables: Tables, keys: tuple[str, ...] = ()) -> list[str]:
    """Return one table of one or several cells, line by line; ``keys``, in its first columns, tell them apart."""
    study = sweep.study
    headings = [*keys, "method", "step sizes"]
    for heading in study.report.values():
        headings.append(heading)
        if any(heading in numbers for numbers in study.paper.values()):
            headings.append(f"{heading}, paper")
    path, main = next(iter(study.report.items()))
    if study.target is not None:
        headings.append(f"rounds to {main} {study.target:g}")
    every = [(cell, row) for cell, rows in tables.items() for row in rows]
    kinds = [kind for kind in COSTS if any(row.spent(kind) for _, row in every)]
    headings += [f"{COSTS[kind]} per site" for kind in kinds]
    references = {cell: row for cell, row in every if row.method.label == study.reference and row.converged}
    budgeted = [kind for kind in kinds if kind != "gradients"] if references else []
    headings += [f"{main} within {study.reference}'s {COSTS[kind]}" for kind in budgeted]
    lines = [
        "| " + " | ".join(headings) + " |",
        "|" + " --- |" * (len(keys) + 2) + " ---: |" * (len(headings) - len(keys) - 2),
    ]
    for cell, row in every:
        cells = [shown({key: dict(cell)[key]}).partition("=")[2] for key in keys]
        if not row.runs:
            why = "not run" if row.missing or None in map(sweep.outcome, sweep.tuning(row.method)) else "diverged"
            cells += [row.method.label, "every point of the grid diverged" if why == "diverged" else "", why]
            lines.append("| " + " | ".join(cells + ["–"] * (len(headings) - len(cells))) + " |")
            continue
        cells += [row.method.label + remark(row), step_sizes(row.chosen or {})]
        for metric_path, heading in study.report.items():
            cells.append(spread(row.values(metric_path)))
            if f"{heading}, paper" in headings:
                cells.append(number(study.paper.get(row.method.label, {}).get(heading)))
        if study.target is not None:
            rounds = row.rounds_to(path, study.target)
            missed = len(row.runs) - len(rounds)
            cells.append(f"not in {missed} of {len(row.runs)} runs" if missed else amount(statistics.mean(rounds)))
        cells += [amount(row.spent(kind)) for kind in kinds]
        reference = references.get(cell)
        cells += [number(row.within(path, kind, reference.spent(kind)) if reference else None) for kind in budgeted]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def remark(row: Row) -> str:
    """Say how many runs are missing or diverged."""
    diverged, total = len(row.runs) - len(row.converged), len(row.runs) + row.missing
    notes = [f"{diverged} of {total} runs diverged"] if diverged else []
    notes += [f"{row.missing} of {total} runs missing"] if row.missing else []
    return f" ({'; '.join(notes)})" if notes else ""


def step_sizes(point: Settings) -> str:
    """Write the chosen step sizes: one number where they are the same."""
    return f"{next(iter(point.values())):g}" if len(set(point.values())) == 1 else shown(point) or "–"


def amount(value: float) -> str:
    """Format a cost: three digits at least."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def number(value: float | None) -> str:
    """Format a metric: four places, or two digits where it is small."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.4f}"


def spread(values: list[float]) -> str:
    """Format mean ± standard deviation."""
    if not values:
        return "–"
    mean = number(statistics.mean(values))
    return f"{mean} ± {number(statistics.stdev(values))}" if len(values) > 1 else mean


# ---------------------------------------------------------------------- picture


def draw(sweep: Sweep, tables: Tables, path: Path) -> None:
    """Draw curves over rounds, a panel per metric and cell; or the final numbers side by side."""
    from matplotlib.figure import Figure
    from PIL import Image

    study = sweep.study
    if study.picture == "points":
        figure = Figure(figsize=(8, 4), layout="constrained", dpi=100)
        axes = figure.subplots()
        points(axes, next(iter(tables.values())), dict(study.report))
    else:
        wanted = [(p, heading) for p, heading in study.report.items() if heading in (study.curves or (heading,))]
        # From left to right the values of the last key, from top to bottom those of the others, each with all metrics.
        columns = len([*study.compare.values()][-1]) if study.compare else 1
        cells = list(tables.items())
        blocks = [cells[start : start + columns] for start in range(0, len(cells), columns)]
        lines = [(block, *metric) for block in blocks for metric in wanted]
        scale = 0.8 if len(blocks) > 1 else 1.0
        size = (4.6 * scale * columns, 3.3 * scale * len(lines) + 0.8)
        figure = Figure(figsize=(max(size[0], 6.5), size[1]), layout="constrained", dpi=100)
        grid = figure.subplots(len(lines), columns, squeeze=False, sharey="row")
        for line, (block, metric_path, heading) in enumerate(lines):
            for column, (cell, rows) in enumerate(block):
                axes = grid[line][column]
                curves(axes, rows, metric_path)
                axes.set(xlabel="round", ylabel=heading if column == 0 else "", title=shown(dict(cell)))
                axes.grid(alpha=0.3)
                if "distance" in metric_path or "error" in metric_path:
                    axes.set_yscale("log")
        axes = grid[0][0]
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle(study.title, fontsize=10)
    figure.savefig(path, metadata={"Software": None})
    with Image.open(path) as picture:  # a palette takes a third of the bytes
        palette = picture.convert("RGB").quantize(128)
    palette.save(path, optimize=True)


def curves(axes: Axes, rows: list[Row], path: str) -> None:
    """Draw a line per method, the mean of its runs, and a band from the lowest to the highest."""
    for place, row in enumerate(rows):
        by_round: dict[int, list[float]] = defaultdict(list)
        for _, outcome in row.converged:
            for record in outcome.records:
                if (value := metric(record, path)) is not None:
                    by_round[record["round"]].append(value)
        rounds = sorted(by_round)
        style = {"color": f"C{place % 10}", "linestyle": STYLES[place // 10 % len(STYLES)], "label": row.method.label}
        axes.plot(rounds, [statistics.mean(by_round[r]) for r in rounds], linewidth=1.3, **style)  # type: ignore[arg-type]
        low, high = ([end(by_round[r]) for r in rounds] for end in (min, max))
        axes.fill_between(rounds, low, high, color=style["color"], alpha=0.12, linewidth=0)


def points(axes: Axes, rows: list[Row], report: dict[str, str]) -> None:
    """Draw the final numbers of each method side by side, with bars of one standard deviation."""
    for place, row in enumerate(rows):
        values = [row.values(path) for path in report]
        shift = (place - (len(rows) - 1) / 2) * 0.8 / max(1, len(rows))
        axes.errorbar(
            [column + shift for column in range(len(report))],
            [statistics.mean(found) if found else math.nan for found in values],
            [statistics.stdev(found) if len(found) > 1 else 0.0 for found in values],
            fmt="o",
            markersize=4,
            label=row.method.label,
        )
    axes.set_xticks(range(len(report)), list(report.values()))
    axes.grid(alpha=0.3)
    axes.set_ylabel("mean ± standard deviation")
