"""The study `benchmarks.studies.when_auc_pays`: its runs cell by cell, and its page docs/results/when-auc-pays.md."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.claims import holm, p_value
from benchmarks.pages import insert
from benchmarks.rare import file_of
from benchmarks.studies.when_auc_pays import (
    ARMS,
    CELLS,
    CROSS_ENTROPY,
    DRAWS,
    KINDS,
    NAME,
    POOLED,
    RANKING,
    SEEDS,
    TITLE,
    WEIGHTED,
    WITHIN,
    Cell,
    protocol,
)
from edelweiss.lab.compare.groups import CONFIDENCE, Group, half_width
from edelweiss.lab.compare.runs import Run, final
from edelweiss.lab.compare.text import NOTHING, markdown, remark, spread, write_csv
from edelweiss.lab.sweep import jobs
from edelweiss.lab.sweep.job import Job
from edelweiss.lab.sweep.progress import Progress
from edelweiss.lab.sweep.study import Method, Study
from edelweiss.lab.sweep.workers import Workers

if TYPE_CHECKING:
    from edelweiss.lab.compare.runs import Settings

COLUMNS = {POOLED: "AUROC, pooled", WITHIN: "AUROC within sites"}


@dataclass(frozen=True)
class Sweep(jobs.Sweep[Study]):
    """Runs of some arms in one cell; with ``first`` each starts from that one's model of its seed."""

    cell: Cell = field(kw_only=True)
    first: Sweep | None = field(default=None, kw_only=True)

    def place(self, job: jobs.Job, data_root: str) -> Settings:
        """Return where a run finds its data, drawn here where they are not there, and the model that it starts from."""
        found, seed = dict(super().place(job, data_root)), int(job.repeat["seed"])
        if self.cell.data:
            found["data-file"] = str(file_of(self.cell.data, seed, self.folder.parent / "data", data_root))
        if self.first:
            found["init-from"] = str(self.first.folder / self.first.at(seed).name)
        return found

    @property
    def placed(self) -> frozenset[str]:
        """The data and the model to start from lie with the runs."""
        return super().placed | {"data-file", "init-from"}

    def at(self, seed: int) -> jobs.Job:
        """Return the run of the only method at a seed."""
        (method,) = self.study.methods
        return next(job for job in self.reported(method, self.grid(method)[0]) if job.repeat["seed"] == seed)


@dataclass
class Arm(Group):
    """An arm in a cell: its runs at the seeds that compare, and those that chose its step size."""

    tuning: list[Run] = field(default_factory=list)
    steps: tuple[float, ...] = ()
    step: float | None = None  # None: not chosen yet, or all diverged

    @classmethod
    def of(cls, sweep: Sweep, method: Method) -> Arm:
        """Read an arm's runs."""
        there = [run for job in sweep.tuning(method) if (run := sweep.run(job))]
        arm = cls(method.label, tuning=there, steps=tuple(map(step_of, sweep.grid(method))))
        if (point := sweep.choose(method)) is not None:
            arm.step = step_of(point)
            found = [sweep.run(job) for job in sweep.reported(method, point)]
            arm.runs, arm.missing = [run for run in found if run], found.count(None)
        return arm


def step_of(point: Settings) -> float:
    """Return a point's step size, the same for x and y."""
    return float(next(iter(point.values())))


@dataclass(frozen=True)
class Runs:
    """The runs of a cell: which there are follows from what the earlier ones chose."""

    cell: Cell
    folder: Path  # of the study
    draws: int
    seeds: int

    def sweeps(self) -> Iterator[tuple[Sweep, bool]]:
        """Yield the sweeps one after the other, each once the one before is done, and whether its arms are compared."""
        direct = self._sweep(self.cell.study([arm for arm in ARMS if not arm.after], self.draws, self.seeds))
        yield direct, True
        base = next(method for method in direct.study.methods if method.label == CROSS_ENTROPY)
        if (point := direct.choose(base)) is not None:
            first = self._sweep(self.cell.first_stage(step_of(point), self.seeds))
            yield first, False
            yield self._sweep(self.cell.study([arm for arm in ARMS if arm.after], self.draws, self.seeds), first), True

    def _sweep(self, study: Study, first: Sweep | None = None) -> Sweep:
        return Sweep(study, self.folder / f"{self.draws}-draws" / self.cell.slug, cell=self.cell, first=first)

    def do(self, pool: Workers, progress: Progress) -> None:
        """Do what is missing."""

        def run(sweep: Sweep, wanted: Sequence[Job]) -> None:
            missing = [job for job in wanted if sweep.outcome(job) is None]
            rest = progress.total - progress.done - len(wanted)
            progress.expect([job for job in wanted if job not in missing], rest + len(missing))
            pool.run(sweep, missing, progress)

        for sweep, _ in self.sweeps():
            run(sweep, [job for method in sweep.study.methods for job in sweep.tuning(method)])
            run(sweep, sweep.chosen())

    @cached_property
    def arms(self) -> dict[str, Arm]:
        """What the arms reached, in their order."""
        return {
            method.label: Arm.of(sweep, method)
            for sweep, compared in self.sweeps()
            if compared
            for method in sweep.study.methods
        }

    @property
    def seconds(self) -> float:
        """What all runs of the cell took, of one core."""
        halves = [
            run
            for sweep, compared in self.sweeps()
            if not compared
            for job in sweep.chosen()
            if (run := sweep.run(job))
        ]
        runs = [run for arm in self.arms.values() for run in (*arm.tuning, *arm.runs)]
        return sum(run.outcome.seconds for run in (*halves, *runs))


def expected(draws: int, seeds: int) -> int:
    """Return how many runs a cell has: the first halves of those that start from a model count as runs."""
    return len(ARMS) * (draws + seeds) + seeds + 1


def run(folder: Path, data_root: str, workers: int, draws: int = DRAWS, seeds: int = SEEDS) -> None:
    """Do all runs that are missing, ``workers`` at a time; StoppedError when one cannot be done."""
    progress = Progress(POOLED)
    cells, left_out = available(data_root)
    for cell in left_out:
        print(f"left out: {cell.name}: no {cell.needs}/ under --data-root", file=sys.stderr)
    with contextlib.closing(progress), Workers(workers, data_root) as pool:
        progress.expect([], len(cells) * expected(draws, seeds))
        for cell in cells:
            Runs(cell, folder, draws, seeds).do(pool, progress)


def available(data_root: str) -> tuple[list[Cell], list[Cell]]:
    """Return the cells whose data are there or are drawn, and the others."""
    there = [cell for cell in CELLS if not cell.needs or (data_root and (Path(data_root) / cell.needs).is_dir())]
    return there, [cell for cell in CELLS if cell not in there]


# ---------------------------------------------------------------------- the page


Place = tuple[str, str]
"""A cell's name and an arm's label."""


@dataclass(frozen=True)
class Table:
    """Differences of some arms to one of them, in one metric, cell by cell."""

    path: str  # the metric's, in a line of a run
    base: str  # label of the arm that the others are compared with
    labels: tuple[str, ...]
    pairs: Mapping[Place, Mapping[str, float]]  # the differences, by seed

    @classmethod
    def of(cls, results: Sequence[Runs], path: str, base: str, labels: Sequence[str]) -> Table:
        """Compare arms, in the cells where both have runs."""
        found = {}
        for each in results:
            if base in each.arms:
                theirs = each.arms[base].by_repeat(path)
                for label in labels:
                    if label in each.arms:
                        ours = each.arms[label].by_repeat(path)
                        found[each.cell.name, label] = (ours - theirs.reindex(ours.index)).dropna().to_dict()
        return cls(path, base, tuple(labels), {place: pairs for place, pairs in found.items() if len(pairs) > 1})

    def values(self, place: Place) -> list[float]:
        """Return a comparison's differences."""
        return list(self.pairs[place].values())

    @cached_property
    def holm(self) -> dict[Place, float]:
        """The p-values, corrected over the whole table."""
        return dict(zip(self.pairs, holm([p_value(self.values(place)) for place in self.pairs]), strict=True))

    def half(self, place: Place) -> float:
        """Return half of an interval, corrected for the comparisons of its cell."""
        return half_width(self.values(place), sum(cell == place[0] for cell, _ in self.pairs))

    def sign(self, place: Place) -> int:
        """Return 1 or -1 where the interval leaves out zero, and 0 where it shows no order."""
        return sign(statistics.mean(self.values(place)), self.half(place))

    def entry(self, place: Place) -> str:
        """Write a difference with its interval and its marks."""
        if place not in self.pairs:
            return NOTHING
        marks = (self.sign(place) != 0) * (1 + (self.holm[place] < 1 - CONFIDENCE))
        return interval(statistics.mean(self.values(place)), self.half(place), marks)

    def markdown(self, results: Sequence[Runs]) -> str:
        """Return a line per cell."""
        lines = [["cell", self.base, *self.labels], ["---", *["---:"] * (1 + len(self.labels))]]
        for each in results:
            if self.base in each.arms:
                base = spread(each.arms[self.base].values(self.path))
                lines.append([each.cell.name, base, *(self.entry((each.cell.name, label)) for label in self.labels)])
        return markdown(lines)

    def over(self, names: Sequence[str], label: str) -> list[float]:
        """Return an arm's mean difference over some cells, seed by seed: of the seeds that all of them have."""
        each = [self.pairs[name, label] for name in names if (name, label) in self.pairs]
        seeds = [seed for seed in each[0] if all(seed in one for one in each)] if each else []
        return [statistics.mean(one[seed] for one in each) for seed in seeds]

    def summary(self, results: Sequence[Runs]) -> str:
        """Return a line per arm: for each kind of cells the mean difference, and how many cells show an order."""
        names = {kind: [each.cell.name for each in results if each.cell.kind == kind] for kind in KINDS}
        names = {kind: found for kind, found in names.items() if found}
        comparisons = len(names) * len(self.labels)
        lines = [["arm", *(f"{kind} ({len(found)} cells)" for kind, found in names.items())]]
        lines += [["---", *["---:"] * len(names)]]
        for label in self.labels:
            line = [label]
            for found in names.values():
                signs = [self.sign(place) for name in found if (place := (name, label)) in self.pairs]
                counts = "; ".join(str(signs.count(one)) for one in (1, 0, -1))
                values = self.over(found, label)
                mean, half = (
                    (statistics.mean(values), half_width(values, comparisons)) if len(values) > 1 else (0.0, 0.0)
                )
                line.append(f"{interval(mean, half, abs(sign(mean, half)))} ({counts})" if half else NOTHING)
            lines.append(line)
        return markdown(lines)


def sign(mean: float, half: float) -> int:
    """Return 1 or -1 where an interval leaves out zero, else 0."""
    return int(mean > half) - int(mean < -half)


def interval(mean: float, half: float, marks: int) -> str:
    """Write a mean ± half of its interval, and behind it so many marks."""
    return f"{mean:+.4f} ± {half:.4f}" + "\\*" * marks


def command(draws: int, seeds: int) -> str:
    """Return what a user types."""
    options = [
        f" --{name} {now}"
        for name, now, default in (("draws", draws, DRAWS), ("seeds", seeds, SEEDS))
        if now != default
    ]
    return f"python -m benchmarks.reproduce {NAME}{''.join(options)}"


def text(results: Sequence[Runs], draws: int, seeds: int) -> str:
    """Return the generated part of the page."""
    others = [arm.label for arm in ARMS if arm.label != CROSS_ENTROPY]
    done = [
        each for each in results if not sum(arm.missing for arm in each.arms.values()) and len(each.arms) == len(ARMS)
    ]
    pooled = Table.of(done, POOLED, CROSS_ENTROPY, others)
    within = Table.of(done, WITHIN, CROSS_ENTROPY, others)
    weighted = Table.of(done, POOLED, WEIGHTED, RANKING)
    without = [cell.name for cell in CELLS if cell.name not in {each.cell.name for each in done}]
    runs = sum(len(arm.tuning) + len(arm.runs) for each in results for arm in each.arms.values())
    minutes = sum(each.seconds for each in results) / 60
    parts = [
        f"<!-- Written by `{command(draws, seeds)}`; do not edit. -->",
        f"`{command(draws, seeds)}`. `--draws` and `--seeds` give every arm more.",
        protocol(draws, seeds),
        "Summaries: the mean over the cells of a kind ± half of its 95 % interval over seeds, corrected for all "
        "comparisons of the table (Bonferroni; \\* where it leaves out zero). In brackets, in how many cells by "
        "themselves the arm is shown to be ahead; nothing is shown; it is shown to be behind.",
        f"**Less {CROSS_ENTROPY}, AUROC pooled**",
        pooled.summary(done),
        f"**Less {WEIGHTED}, AUROC pooled**",
        weighted.summary(done),
        f"**Less {CROSS_ENTROPY}, AUROC within sites**",
        within.summary(done),
        f"**AUROC pooled, cell by cell: {CROSS_ENTROPY}, and the others less it**",
        pooled.markdown(done),
        f"**AUROC pooled, cell by cell: {WEIGHTED}, and the arms that train for a ranking less it**",
        weighted.markdown(done),
        f"**AUROC within sites, cell by cell: {CROSS_ENTROPY}, and the others less it**",
        within.markdown(done),
        "**The cells, and what an arm has in each**",
        budgets(done),
        edges(done),
        diverged(done),
        f"Not run: {'; '.join(without)}." if without else "",
        f"{runs:,} runs, and the first halves of the warm starts, took {minutes:,.0f} minutes in sum.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def budgets(results: Sequence[Runs]) -> str:
    """Return a line per cell: its data, and what an arm computes there."""
    lines = [
        [
            "cell",
            "kind",
            "rows",
            "positives that train",
            "rounds × local steps",
            "batch, positives in it",
            "runs",
            "minutes",
        ]
    ]
    lines += [["---"] * 2 + ["---:"] * 6]
    for each in results:
        base, data = each.cell.base(), each.cell.data
        rows, positives = (
            (f"{data.rows:,}", f"{data.positives * (1 - float(base['holdout-share'])):,.0f}")
            if data
            else ("740", "191")
        )
        runs = sum(len(arm.tuning) + len(arm.runs) for arm in each.arms.values())
        lines.append(
            [
                each.cell.name,
                each.cell.kind,
                rows,
                positives,
                f"{base['rounds']} × {base['local-steps']}",
                f"{base['batch-size']}, {base['positives-per-batch']}",
                str(runs),
                f"{each.seconds / 60:.1f}",
            ]
        )
    return markdown(lines)


def edges(results: Sequence[Runs]) -> str:
    """Say how often the smallest or the largest step size was chosen, which means that a range ends too early."""
    found = []
    for arm in ARMS:
        there = [each.arms[arm.label] for each in results if each.arms[arm.label].step is not None]
        low, high = (sum(each.step == pick(each.steps) for each in there) for pick in (min, max))
        found.append(f"{arm.label} {low} and {high}")
    return f"In how many cells the smallest and the largest draw was chosen: {'; '.join(found)}."


def diverged(results: Sequence[Runs]) -> str:
    """Name the arms that have no number at some seed."""
    found = [
        f"{each.cell.name}: {arm.label}{remark(arm)}" for each in results for arm in each.arms.values() if remark(arm)
    ]
    found += [
        f"{each.cell.name}: {arm.label}, with every step size"
        for each in results
        for arm in each.arms.values()
        if arm.tuning and arm.step is None
    ]
    return (
        f"Diverged where it was tested: {'; '.join(found)}."
        if found
        else "No chosen step size diverged where it was tested."
    )


def lines(results: Sequence[Runs]) -> Iterator[dict[str, Any]]:
    """Yield a line per run."""
    for each in results:
        for arm in each.arms.values():
            for use, runs in (("tuning", arm.tuning), ("reported", arm.runs)):
                for run in runs:
                    point = [value for key, value in run.settings.items() if key.endswith(".lr")]
                    line: dict[str, Any] = {
                        "use": use,
                        "cell": each.cell.name,
                        "method": arm.label,
                        "step size": point[0],
                    }
                    line |= {**run.repeat, "outcome": "diverged" if run.outcome.diverged else "done"}
                    yield line | {heading: final(run.outcome, path) for path, heading in COLUMNS.items()}


def write(folder: Path, results_dir: Path, draws: int = DRAWS, seeds: int = SEEDS) -> str:
    """Write the CSV and the generated part of the page, of the cells that have runs; return that part."""
    results = [each for each in (Runs(cell, folder, draws, seeds) for cell in CELLS) if each.arms[CROSS_ENTROPY].runs]
    said = text(results, draws, seeds)
    write_csv(results_dir / f"{NAME}.csv", list(lines(results)))
    insert(results_dir / f"{NAME}.md", NAME, TITLE, said)
    return said
