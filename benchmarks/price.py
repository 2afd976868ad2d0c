"""What ε costs, of a study that compares it: in AUROC, and what choosing a step size adds to a site's account."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from benchmarks.studies.private import EPSILON
from edelweiss.common.files import read_json
from edelweiss.lab.compare.groups import CONFIDENCE, Difference
from edelweiss.lab.compare.text import NOTHING, markdown, spread
from edelweiss.lab.sweep.job import parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.sweep import Sweep
    from benchmarks.tables import Cell, Row, Tables
    from edelweiss.config import RunConfig
    from edelweiss.lab.sweep.job import Job

PATH = "central.auroc"
OWN = {False: "over-sites.auroc.mean", True: "noised.auroc"}
"""The path for a method without a model for the common test set, by whether the run is private."""

Lines = dict[str, dict[float, "Row"]]
"""Rows by method and ε."""


def sections(sweep: Sweep, tables: Tables) -> list[str]:
    """Return what ε costs: tables, each behind a paragraph that says how to read it."""
    cells = by_epsilon(tables)
    parts = [
        f"AUROC after the last round, by {EPSILON}:",
        aurocs(sweep, cells),
        "\n".join(best(sweep, cells)),
        f"What privacy costs: AUROC without it less AUROC with it, paired by seed, with {CONFIDENCE:.0%} confidence "
        "intervals (Student's t) that are not corrected for their number:",
        losses(sweep, cells),
    ]
    if lines := accounts(sweep, tables):
        parts += [accounted(sweep), markdown(lines)]
    return parts


def by_epsilon(tables: Tables) -> dict[Cell, Lines]:
    """Return the rows of each choice of the other keys."""
    cells: dict[Cell, Lines] = defaultdict(lambda: defaultdict(dict))
    for cell, rows in tables.items():
        for row in rows:
            cells[cell[:-1]][row.label][cell[-1][1]] = row
    return cells


# ---------------------------------------------------------------------- AUROC


def aurocs(sweep: Sweep, cells: Mapping[Cell, Lines]) -> str:
    """Return a table with a line for each method and a column for each ε."""

    def entry(line: Mapping[float, Row], epsilon: float) -> str:
        common = any(row.values(PATH) for row in line.values())
        row = line[epsilon]
        found = row.values(PATH if common else OWN[epsilon > 0])
        return spread(found) if len(found) == len(row.converged) else NOTHING

    return _table(sweep, cells, entry)


def losses(sweep: Sweep, cells: Mapping[Cell, Lines]) -> str:
    """Return a table of differences to the runs without privacy, of methods with a model for the common test set."""

    def entry(line: Mapping[float, Row], epsilon: float) -> str:
        lost = Difference.between(line[0.0], line[epsilon], PATH)
        low, high = lost.mean - lost.half, lost.mean + lost.half
        return f"{lost.mean:.3f} ({low:.3f} to {high:.3f})" if lost.pairs > 1 else NOTHING

    return _table(sweep, cells, entry, first=1)


def _table(
    sweep: Sweep, cells: Mapping[Cell, Lines], entry: Callable[[Mapping[float, Row], float], str], first: int = 0
) -> str:
    epsilons, others = sweep.study.compare[EPSILON][first:], [key for key in sweep.study.compare if key != EPSILON]
    columns = [f"ε = {sweep.study.named({EPSILON: each}).rpartition('=')[2]}" for each in epsilons]
    lines = [[*("sites" for _ in others), "method", *columns], ["---"] * (len(others) + 1) + ["---:"] * len(columns)]
    for cell, methods in cells.items():
        for label, line in methods.items():
            place = [sweep.study.named({key: value}) for key, value in cell]
            lines.append([*place, label, *(entry(line, float(each)) for each in epsilons)])
    return markdown(lines)


def best(sweep: Sweep, cells: Mapping[Cell, Lines]) -> Iterator[str]:
    """Yield, for each choice of the other keys, the highest mean on the common test set at each ε, and what it lost."""
    for cell, methods in cells.items():
        highest: dict[float, tuple[float, str]] = {}
        for label, line in methods.items():
            for epsilon, row in line.items():
                if values := row.values(PATH):
                    highest[epsilon] = max(highest.get(epsilon, (0.0, "")), (statistics.mean(values), label))
        if 0.0 not in highest:
            continue
        start, label = highest.pop(0.0)
        after = "; ".join(
            f"at ε = {epsilon:g} {mean:.3f} ({name}), {start - mean:.3f} less"
            for epsilon, (mean, name) in highest.items()
        )
        where = sweep.study.named(dict(cell))
        yield f"- {f'{where}: the' if where else 'The'} highest mean is {start:.3f} without privacy ({label}); {after}."


# ---------------------------------------------------------------------- the account


def accounted(sweep: Sweep) -> str:
    """Say what the table of accounts shows, and who pays for what."""
    runs = len(sweep.grid(sweep.study.methods[0]))
    return (
        f"Choosing costs privacy, too. `with tuning` is ε on a site's account after the {runs} runs that chose and the "
        "one that is reported, over methods and sites: a patient is trained on or held out, and pays for one of the "
        "two. Who knows a step size beforehand pays for one run, the ε on the left. The seeds are the study's: a "
        "hospital answers one. `noise` is that of each sum of gradients, as a multiple of the clip."
    )


def accounts(sweep: Sweep, tables: Tables) -> list[list[str]]:
    """Return a table of noise and ε at each ε; nothing without runs."""
    lines = []
    for cell in tables:
        epsilon = float(dict(cell)[EPSILON])
        jobs = [
            sweep.reported(method, point, dict(cell))[0]
            for method in sweep.study.methods
            if epsilon and (point := sweep.choose(method, dict(cell))) is not None
        ]
        found = [(parsed(job.settings), sites) for job in jobs if (sites := _sites(sweep, job))]
        if not found:
            continue
        noises = [site["noise"] for _, sites in found for site in sites]
        tight = [site["tight-epsilon"] for _, sites in found for site in sites]
        runs = len(sweep.grid(sweep.study.methods[0])) + 1
        trained = [trained_on(run, len(sites), site["patients"], runs) for run, sites in found for site in sites]
        place = [sweep.study.named({key: value}) for key, value in cell if key != EPSILON]
        columns = [_range(noises), _range(tight), _range(trained), f"{held_out(found[0][0], runs):.2f}"]
        lines.append([*place, f"{epsilon:g}", *columns])
    if not lines:
        return []
    others = ["sites"] * (len(sweep.study.compare) - 1)
    heading = [*others, "ε", "noise", "ε of the run by itself", "with tuning: trained on", "held out"]
    return [heading, ["---"] * len(others) + ["---:"] * 5, *lines]


def _sites(sweep: Sweep, job: Job) -> list[dict[str, float]]:
    """Return what a private run noted of each site: patients, noise, ε; nothing where it is not there."""
    file = sweep.folder / job.name / "about.json"
    return list(read_json(file).get("privacy", {}).get("sites", {}).values()) if file.exists() else []


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def trained_on(run: RunConfig, sites: int, patients: int, runs: int) -> float:
    """Return ε of several runs of one kind on a site's account; the noised counts are the same in all, and paid once.

    Parameters
    ----------
    run
        One of them, with a `dp.epsilon`.
    sites, patients
        K, and those that the site trains on.
    runs
        At least 1.
    """
    from edelweiss.config.privacy import price
    from edelweiss.federation.privacy_account import epsilon

    cost = price(run, sites, patients)
    return epsilon(cost.counts + runs * (cost.curve - cost.counts), run.dp_delta)


def held_out(run: RunConfig, runs: int) -> float:
    """Return ε of the final evaluations of several runs for a patient who is held out."""
    from edelweiss.config.privacy import evaluation_cost
    from edelweiss.federation.privacy_account import epsilon

    return epsilon(runs * evaluation_cost(run), run.dp_delta)
