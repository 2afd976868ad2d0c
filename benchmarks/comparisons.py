"""What a study's runs say of methods against each other: differences pair by pair, and how far a key can be raised."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from benchmarks.tables import Cell, Row, Tables
from edelweiss.lab.compare.groups import CONFIDENCE, Difference
from edelweiss.lab.compare.runs import shown
from edelweiss.lab.compare.text import NOTHING, markdown, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.studies import Study


def sections(study: Study, tables: Tables) -> list[str]:
    """Return the tables that the study asks for, each behind a paragraph that says how to read it."""
    parts = []
    if study.versus:
        parts += [versus(study), differences(study, tables)]
    if study.within is not None:
        parts += [along(study, study.within), limits(study, tables, study.within)]
    return parts


# ---------------------------------------------------------------------- pairs


def versus(study: Study) -> str:
    """Say what the table of differences shows."""
    metrics = ", ".join(study.versus_in or [next(iter(study.report.values()))])
    return (
        f"Differences in {metrics} to {study.versus}, each method with its chosen point, paired by "
        f"{' and '.join(study.repeat)}: mean and {CONFIDENCE:.0%} confidence interval (Student's t). An interval that "
        "contains 0 shows no order. The intervals are not corrected for their number."
    )


def differences(study: Study, tables: Tables) -> str:
    """Return a table of each method's differences to the one that the study names."""
    paths = {heading: path for path, heading in study.report.items() if heading in study.versus_in}
    first = ["metric"] * bool(paths) + [*study.compare, "method"]
    lines = [[*first, "difference", f"{CONFIDENCE:.0%} interval", "pairs", "order"]]
    lines += [["---"] * len(first) + ["---:"] * 3 + ["---"]]
    for heading, path in (paths or {"": next(iter(study.report))}).items():
        for cell, rows in tables.items():
            base = next(row for row in rows if row.method.label == study.versus)
            for row in rows:
                if row is base or (paths and row.runs and not row.values(path)):  # it has no such metric
                    continue
                place = [heading] * bool(paths) + [str(value) for _, value in cell]
                lines.append([*place, row.method.label, *_difference(row, base, path)])
    return markdown(lines)


def _difference(row: Row, base: Row, path: str) -> list[str]:
    found = Difference.between(row, base, path)
    if found.pairs < 2:
        return [NOTHING, NOTHING, str(found.pairs), NOTHING]
    low, high = found.mean - found.half, found.mean + found.half
    order = {1: "ahead", -1: "behind", 0: "none shown"}[found.sign]
    return [f"{found.mean:+.4f}", f"{low:+.4f} to {high:+.4f}", str(found.pairs), order]


# ---------------------------------------------------------------------- along an axis


def along(study: Study, within: float) -> str:
    """Say what the table along the last key shows."""
    heading, key = next(iter(study.report.values())), list(study.compare)[-1]
    first = study.compare[key][0]
    return (
        f"Mean {heading} after the last round by {key}. `up to`: the largest value at which, and at all smaller ones, "
        f"the mean is at most {within:g} below that at {key}={first}."
    )


def limits(study: Study, tables: Tables, within: float) -> str:
    """Return a table with a column per value of the last key, and up to which of them each method stays close."""
    path, key = next(iter(study.report)), list(study.compare)[-1]
    others, values = [name for name in study.compare if name != key], study.compare[key]
    lines = [[*others, "method", f"{key} {values[0]}", *map(str, values[1:]), "up to"]]
    lines += [["---"] * (len(others) + 1) + ["---:"] * (len(values) + 1)]
    means: dict[tuple[Cell, str], list[float | None]] = defaultdict(list)
    for cell, rows in tables.items():
        for row in rows:
            found = row.values(path)
            means[cell[:-1], row.method.label].append(statistics.mean(found) if found else None)
    for (cell, label), line in means.items():
        reached = [value for value, near in zip(values, stays(line, within), strict=True) if near]
        place = [shown({name: value}).partition("=")[2] for name, value in cell]
        lines.append([*place, label, *map(number, line), str(reached[-1]) if reached else NOTHING])
    return markdown(lines)


def stays(means: Sequence[float | None], within: float) -> list[bool]:
    """Return at which places a mean, and all before it, are at most so much below the first."""
    near: list[bool] = []
    for mean in means:
        close = mean is not None and means[0] is not None and mean >= means[0] - within
        near.append(close and all(near))
    return near
