"""The folder of a sweep: its lock, the copy of its file, and its results."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import statistics
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edelweiss.common import shown as quoted
from edelweiss.common import to_toml
from edelweiss.common.files import as_path, read_toml, reason, unwritable
from edelweiss.config import ConfigError
from edelweiss.lab.compare.comparison import Comparison, require_metrics
from edelweiss.lab.compare.folders import read
from edelweiss.lab.compare.runs import MACHINE, held_out, lower_is_better, shown
from edelweiss.lab.compare.text import NOTHING, number, spread, write_csv
from edelweiss.lab.sweep.file import read as read_file
from edelweiss.lab.sweep.job import different, parsed
from edelweiss.lab.sweep.jobs import Sweep
from edelweiss.lab.sweep.workers import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from edelweiss.common import Value
    from edelweiss.lab.compare.groups import Group
    from edelweiss.lab.sweep.job import Job
    from edelweiss.lab.sweep.study import Study

    Decide = Callable[[Sweep[Study], Comparison], tuple[Job | None, str]]

FREE = {"seeds", "draws"}  # of the file: with others, runs that are there stay good
COPY = "sweep.toml"
MOST_JOBS = 1024


def sweep(
    file: Path,
    to: str | Path,
    jobs: int,
    *,
    metrics: Sequence[str] = (),
    against: Sequence[str] = ("rounds",),
    data_root: str = "",
    engine: str = "processes",
    decide: Decide | None = None,
) -> tuple[Path, Comparison]:
    """Do the runs of a file that are missing, ``jobs`` at a time; return the folder, and what was chosen, compared.

    ``decide`` says which run is the winner and why, by intervals that hold together; by default the tuning seed does.

    Raises
    ------
    ConfigError
        Before the first run, for all that is wrong with the file and the arguments.
    StoppedError
        When a run cannot be done.
    """
    if not 1 <= jobs <= MOST_JOBS:
        raise ConfigError("command", [f"--jobs {jobs}: must be from 1 to {MOST_JOBS}"])
    if wrong := unwritable(to):
        raise ConfigError("command", [f"--to {quoted(str(to))}: {wrong}"])
    folder = as_path(to).resolve()
    study, content = read_file(file)
    runs = Sweep(study, folder / "runs")
    runs.check()
    require_metrics(runs.kinds(), metrics)
    keep(file, content, folder)
    with owned(folder):
        run(runs, jobs, data_root, engine)
        return folder, finish(runs, folder, metrics, against, decide)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Take the folder for this process alone; ConfigError when another has it."""
    lock = os.open(folder, os.O_RDONLY)  # released when the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError("command", [f"--to {str(folder)!r}: another sweep is running there: wait for it"]) from None
    try:
        yield
    finally:
        os.close(lock)


def keep(file: Path, content: Mapping[str, Any], folder: Path) -> None:
    """Copy the file into the sweep's folder; ConfigError when the folder has the runs of another file."""
    there = folder / COPY
    if there.exists():
        try:
            old = read_toml(there)
        except (OSError, ValueError) as error:
            raise ConfigError("command", [f"{there}: {reason(error)}: remove {folder}, or name another --to"]) from None
        differs = [key for key in {**old, **content} if key not in FREE and old.get(key) != content.get(key)]
        if differs:
            what = f"the sweep of another file, or of this one before {', '.join(differs)} changed"
            raise ConfigError("command", [f"--to {str(folder)!r}: it has {what}: name another --to, or remove it"])
    elif folder.exists() and any(folder.iterdir()):
        raise ConfigError("command", [f"--to {str(folder)!r}: there is something else in it: name another folder"])
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, there)


def finish(
    sweep: Sweep[Study], folder: Path, metrics: Sequence[str], against: Sequence[str], decide: Decide | None = None
) -> Comparison:
    """Write the choice, the comparison of the chosen points, and the winner's run-config; return the comparison."""
    write_csv(folder / "choice.csv", list(choice(sweep)))
    forget(sweep)
    best = {method.label: point for method in sweep.study.methods if (point := sweep.choose(method)) is not None}
    lost = [f"{m.label}: every point diverged." for m in sweep.study.methods if m.label not in best]
    if not best:
        raise ConfigError("sweep", lost)
    found, notes = read([str(sweep.folder / job.name) for job in different(sweep.chosen())])
    about = [*notes, *lost, *choice_notes(sweep)]
    comparison = Comparison.of(found, metrics, notes=about, columns=columns(sweep), corrected=decide is not None)
    job, sentence = (decide or best_of_tuning)(sweep, comparison)
    if job:
        comparison.notes.append(sentence)
        (folder / "winner.toml").write_text(run_config(job), encoding="utf-8")
    comparison.write(folder, against)
    return comparison


def forget(sweep: Sweep[Study]) -> None:
    """Remove the checkpoints of runs that were stopped early; a rerun gives the same results."""
    for job in (job for method in sweep.study.methods for job in sweep.tuning(method) if job.until):
        for path in ("state.safetensors", "memory-*.tar"):
            for file in (sweep.folder / job.name).glob(path):
                file.unlink()


def best_of_tuning(sweep: Sweep[Study], comparison: Comparison) -> tuple[Job | None, str]:
    """Return the run that the tuning seed chose among all, and the sentence about it."""
    job = winner(sweep)
    return job, reached(sweep, job, comparison) if job else ""


def winner(sweep: Sweep[Study]) -> Job | None:
    """Return the first reported run of the method that was best where it was chosen; None where no number says it."""
    sign = -1 if lower_is_better(sweep.study.select) else 1
    values = {method.label: value for method in sweep.study.methods if (value := sweep.chosen_by(method)) is not None}
    methods = {method.label: method for method in sweep.study.methods}
    only = len(methods) == 1
    label = max(values, key=lambda each: sign * values[each]) if values else next(iter(methods)) if only else ""
    point = sweep.choose(methods[label]) if label else None
    return sweep.reported(methods[label], point)[0] if point is not None else None


def columns(sweep: Sweep[Study]) -> dict[str, dict[str, str]]:
    """Return the chosen points and their values as columns of the table; none without a choice."""
    study = sweep.study
    jobs, values = sweep.chosen(), {method.label: sweep.chosen_by(method) for method in study.methods}
    by = {job.name: number(values[job.method.label]) for job in jobs}
    points = {job.name: shown(job.point) or NOTHING for job in jobs}
    found = {"chosen": points, f"{study.select}, seed {study.tuning_seed}": by}
    return {heading: texts for heading, texts in found.items() if set(texts.values()) != {NOTHING}}


def reached(sweep: Sweep[Study], job: Job, comparison: Comparison) -> str:
    """Return the sentence about the winner: what it was chosen by, and what it reached with the compared seeds."""
    study, (path, heading) = sweep.study, next(iter(comparison.metrics.items()))
    seeds = ", ".join(map(str, study.repeat["seed"]))
    what = ", ".join(part for part in (job.method.label, shown(job.point)) if part)
    extreme = "lowest" if lower_is_better(study.select) else "highest"
    why = f"the {extreme} {study.select} at seed {study.tuning_seed}, {number(sweep.chosen_by(job.method))}"
    mine = group_of(job, comparison)
    text = f"winner.toml has {what}: {why}. With seeds {seeds} it reached {heading} {spread(mine.values(path))}"
    means = {
        group.label: (-1 if lower_is_better(path) else 1) * statistics.mean(values)
        for group in comparison.groups
        if (values := group.values(path))
    }
    ahead = [
        group
        for group in comparison.groups
        if group.label in means and means[group.label] > means.get(mine.label, -math.inf)
    ]
    if not ahead:
        return f"{text}{', the best of the table' * (len(means) > 1)}."
    first = max(ahead, key=lambda group: means[group.label])
    return f"{text}. That is not the best of the table: {first.label} reached {spread(first.values(path))}."


def group_of(job: Job, comparison: Comparison) -> Group:
    """Return the line of the table that a run is in."""
    run = next(each.run for each in comparison.found if each.path.name == job.name)
    return next(group for group in comparison.groups if any(each is run for each in group.runs))


def run_config(job: Job) -> str:
    """Return a run as a file that a run can be started with; what depends on the machine is left to that."""
    written: dict[str, Value] = {k: v for k, v in parsed(job.settings).written().items() if k not in MACHINE}
    return to_toml(written)


def choice_notes(sweep: Sweep[Study]) -> list[str]:
    """Return how the points were chosen, for the notes below the table."""
    study = sweep.study
    counts = {method.label: len(sweep.grid(method)) for method in study.methods}
    if max(counts.values()) == 1:
        return []
    where = "" if study.select.startswith("central.") else " on held-out samples"
    text = f"Chosen by {study.select}{where}, at seed {study.tuning_seed}, which no other number of the table uses."
    if len(set(counts.values())) > 1:
        text += f" Points differ in number: {', '.join(f'{label} {count}' for label, count in counts.items())}."
    on_edge = [m.label for m in study.methods if (point := sweep.choose(m)) and sweep.on_edge(m, point, {})]
    if unknown := [
        m.label
        for m in study.methods
        if len(sweep.grid(m)) > 1 and sweep.chosen_by(m) is None and sweep.choose(m) is not None
    ]:
        text += f" It is not defined in any of these runs, and the smallest step size was taken: {', '.join(unknown)}."
    if on_edge:
        text += f" The choice lies on the edge of its grid still: {', '.join(on_edge)}."
    return [text]


def choice(sweep: Sweep[Study]) -> list[dict[str, Any]]:
    """Return a line per run that chooses."""
    lines = []
    for method in sweep.study.methods:
        chosen = sweep.choose(method)
        for job in sweep.tuning(method):
            outcome = sweep.outcome(job)
            assert outcome is not None, "all runs are there"
            ended = "diverged" if outcome.diverged else f"stopped after round {job.until}" if job.until else "done"
            record = outcome.records[(job.until or len(outcome.records)) - 1] if outcome.records else {}
            value = None if outcome.diverged else held_out(record, sweep.study.select)
            lines.append(
                {
                    "method": method.label,
                    **job.point,
                    "outcome": ended,
                    sweep.study.select: value,
                    "chosen": "yes" if job.point == chosen else "",
                    "folder": job.name,
                }
            )
    return lines
