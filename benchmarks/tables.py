"""What a study's runs say, as a table: in Markdown, and as CSV with a line per run.

The Markdown shows mean ± standard deviation over the repeats, what a site computed and exchanged, and how far each
method was when it had used up the budget of one of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.sweep import Sweep
from edelweiss.lab.compare.groups import Group
from edelweiss.lab.compare.runs import final, held_out, metric, shown
from edelweiss.lab.compare.text import NOTHING, amount, markdown, number, remark, spread
from edelweiss.lab.sweep.job import combinations

if TYPE_CHECKING:
    from benchmarks.studies import Settings, Study
    from edelweiss.lab.sweep.study import Method

Cell = tuple[tuple[str, Any], ...]  # keys that are compared, and a value of each

COSTS = {"gradients": "gradients", "samples": "sample gradients", "megabytes": "MB"}


@dataclass(kw_only=True)
class Row(Group):
    """A method in one table: its runs, and why some are missing."""

    method: Method
    chosen: Settings | None

    def reached(self, path: str, target: float) -> list[tuple[float, float]]:
        """Return when a metric reached a target, of each run that came so far: the round, and seconds per worker."""
        found = []
        for run in self.runs:
            seconds = 0.0
            for record in run.outcome.records:
                seconds += record.get("seconds", 0.0) / run.sites
                if (metric(record, path) or 0.0) >= target:
                    found.append((float(record["round"]), seconds))
                    break
        return found

    def within(self, path: str, kind: str, budget: float) -> float | None:
        """Return a metric's mean over the runs, each as it was last evaluated before it exceeded a budget."""
        found = []
        for run in self.converged:
            lines = zip(run.outcome.records, run.spending(kind), strict=True)
            affordable = [
                value
                for record, (_, total) in lines
                if total <= budget * 1.001 and (value := metric(record, path)) is not None
            ]
            if not affordable:
                return None
            found.append(affordable[-1])
        return statistics.mean(found) if found else None


Tables = dict[Cell, list[Row]]


def gather(sweep: Sweep) -> Tables:
    """Read the reported runs: rows by cell, a cell per combination of what is compared."""
    tables: Tables = {tuple(cell.items()): [] for cell in combinations(sweep.study.compare)}
    for method in sweep.study.methods:
        for cell, rows in tables.items():
            row = Row(label=method.label, method=method, chosen=sweep.choose(method, dict(cell)))
            for job in sweep.reported(method, row.chosen, dict(cell)) if row.chosen is not None else ():
                if run := sweep.run(job):
                    row.runs.append(run)
                else:
                    row.missing += 1
            rows.append(row)
    return tables


# ---------------------------------------------------------------------- CSV


def csv_lines(sweep: Sweep, tables: Tables) -> list[dict[str, Any]]:
    """Return a line per run that is there: first the tuning runs, then the reported ones."""
    study, lines = sweep.study, []
    runs = [
        ("tuning", method, job.point, run)
        for method in study.methods
        for job in sweep.tuning(method)
        if (run := sweep.run(job))
    ]
    runs += [
        ("reported", row.method, row.chosen or {}, run) for rows in tables.values() for row in rows for run in row.runs
    ]
    for use, method, point, run in runs:
        cell = {key: run.settings.get(key, "") for key in study.compare}
        line: dict[str, Any] = {"use": use, "method": method.label, "algorithm": method.algorithm, **cell}
        line |= {"step sizes": shown(point), **run.repeat}
        line |= {"rounds": len(run.outcome.records), "outcome": "diverged" if run.outcome.diverged else "done"}
        line[f"held out: {study.select}"] = None if run.outcome.diverged else held_out(run.outcome.last, study.select)
        if use == "reported":
            line |= {heading: final(run.outcome, path) for path, heading in study.report.items()}
        costs = {kind: run.spending(kind) for kind in COSTS}
        line |= {f"{COSTS[kind]} per site": round(curve[-1][1], 6) for kind, curve in costs.items() if curve}
        lines.append(line)
    return lines


# ---------------------------------------------------------------------- Markdown


Entry = Callable[[Cell, Row], str]  # what stands in a column of numbers for a method that has runs


def table(sweep: Sweep, tables: Tables, keys: Sequence[str] = ()) -> str:
    """Return one table of one or several cells; the values of ``keys``, in its first columns, tell them apart."""
    every = [(cell, row) for cell, rows in tables.items() for row in rows]
    columns = metrics(sweep.study) | costs(sweep.study, every)
    point = "chosen" if sweep.study.trials else "step sizes"
    lines = [[*keys, "method", point, *columns], ["---"] * (len(keys) + 2) + ["---:"] * len(columns)]
    for cell, row in every:
        place = [sweep.study.named({key: dict(cell)[key]}).rpartition("=")[2] for key in keys]
        if row.runs:
            edge = " *" * sweep.on_edge(row.method, row.chosen or {}, dict(cell))
            name = [row.method.label + remark(row), step_sizes(row.chosen or {}) + edge]
            lines.append([*place, *name, *(entry(cell, row) for entry in columns.values())])
        else:
            unfinished = row.missing or None in map(sweep.outcome, sweep.tuning(row.method))
            why = ["", "not run"] if unfinished else ["every point of the grid diverged", "diverged"]
            lines.append([*place, row.method.label, *why, *[NOTHING] * (len(columns) - 1)])
    return markdown(lines)


def metrics(study: Study) -> dict[str, Entry]:
    """Return the columns of what is reported, of published numbers, and of the rounds to the target."""

    def ours(path: str) -> Entry:
        return lambda _, row: spread(row.values(path))

    def published(heading: str) -> Entry:
        def entry(cell: Cell, row: Row) -> str:
            found = study.paper.get(row.method.label, {}).get(heading)
            return number(found.get(cell[0][1]) if isinstance(found, Mapping) else found)

        return entry

    columns = {}
    for path, heading in study.report.items():
        columns[heading] = ours(path)
        if any(heading in numbers for numbers in study.paper.values()):
            columns[f"{heading}, paper"] = published(heading)
    if (target := study.target) is not None:
        path, heading = next(iter(study.report.items()))
        columns[f"rounds to {heading} {target:g}"] = lambda _, row: when(row, path, target, 0)
        columns["seconds per worker"] = lambda _, row: when(row, path, target, 1)
    return columns


def costs(study: Study, every: Sequence[tuple[Cell, Row]]) -> dict[str, Entry]:
    """Return the columns of what a site spent, and of the first metric within what the reference spent."""
    path, heading = next(iter(study.report.items()))
    references = {cell: row for cell, row in every if row.method.label == study.reference and row.converged}

    def spent(kind: str) -> Entry:
        return lambda _, row: amount(row.spent(kind))

    def within(kind: str) -> Entry:
        def entry(cell: Cell, row: Row) -> str:
            reference = references.get(cell)
            return number(row.within(path, kind, reference.spent(kind)) if reference else None)

        return entry

    kinds = [kind for kind in COSTS if any(row.spent(kind) for _, row in every)]
    budgets = [kind for kind in kinds if kind != "gradients"] if references else []
    return {f"{COSTS[kind]} per site": spent(kind) for kind in kinds} | {
        f"{heading} within {study.reference}'s {COSTS[kind]}": within(kind) for kind in budgets
    }


def when(row: Row, path: str, target: float, unit: int) -> str:
    """Format when, on average, a metric reached a target: in rounds (unit 0) or in seconds (1)."""
    reached = [found[unit] for found in row.reached(path, target)]
    missed = len(row.runs) - len(reached)
    return f"not in {missed} of {len(row.runs)} runs" if missed else amount(statistics.mean(reached))


def step_sizes(point: Settings) -> str:
    """Write the chosen step sizes: one number where they are the same."""
    return f"{next(iter(point.values())):g}" if len(set(point.values())) == 1 else shown(point) or NOTHING
