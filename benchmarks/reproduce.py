"""Run a published experiment with all its methods, and write its table (CSV, Markdown) and its picture.

    python -m benchmarks.reproduce --list
    python -m benchmarks.reproduce heart --data-root FOLDER

A study (benchmarks/studies.py) is a run-config under experiments/, the methods that are compared on it, and a grid of
step sizes for each. First every point of every grid is run once at a seed of its own; the best point by the metric on
the sites' held-out samples is then run with the seeds that are reported. The test set takes no part in the choice.

Each run is a process's work on one core, and its numbers do not depend on ``--jobs``. It has a folder named after its
configuration: a run that is there is read, one that was cut off is run again, so that the command can be stopped and
repeated at any time. A run that diverged is a result too.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
import time
import tomllib
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.studies import REPO, STUDIES, Method, Settings, Study, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from config import RunConfig

Record = dict[str, Any]

# What says where and how a run is computed, not what it computes.
MACHINE = ("data-root", "runs-dir", "run-name", "engine", "workers", "threads", "device", "checkpoint-every")
OUTCOME = "outcome.json"  # written last: a folder without it is of a run that was cut off


# ---------------------------------------------------------------------- one run


@dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes
    ----------
    method : Method
        Whose run it is.
    point : Settings
        Of the method's grid.
    cell : Settings
        Which table or panel it belongs to; empty for a tuning run.
    repeat : Settings
        Its seed, and its fold where there are folds.
    settings : Settings
        The whole run-config, less what depends on the machine.
    """

    method: Method
    point: Settings
    cell: Settings
    repeat: Settings
    settings: Settings

    @property
    def name(self) -> str:
        """The run folder's name: equal settings, equal name."""
        text = json.dumps(dict(self.settings), sort_keys=True)
        label = re.sub(r"[^a-z0-9]+", "-", self.method.label.lower())
        return f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def __str__(self) -> str:
        """What makes this run different from the others of its study."""
        return f"{self.method.label} {shown({**self.point, **self.cell, **self.repeat})}"


def shown(settings: Settings) -> str:
    """Write settings in few words: an algorithm's table goes without saying."""
    return ", ".join(
        f"{key.rpartition('.')[2]}={value:g}" if isinstance(value, float) else f"{key.rpartition('.')[2]}={value}"
        for key, value in settings.items()
    )


@dataclass(frozen=True)
class Outcome:
    """What came of a run: a line per round, and the message of a run that diverged."""

    records: list[Record]
    diverged: str
    seconds: float
    version: str


@dataclass(frozen=True)
class Sweep:
    """A study at one size, and where its runs lie.

    Attributes
    ----------
    study : Study
        What is compared.
    full : bool
        The paper's own size and the whole grid, or what two cores can do.
    changes : Settings
        Keys that a user changed for all runs.
    folder : Path
        Of the study's runs.
    """

    study: Study
    full: bool
    folder: Path
    changes: Settings = field(default_factory=dict)

    def settings(self, method: Method, cell: Settings, *more: Settings) -> Settings:
        """Return the run-config of a method; of two that name a key the later one counts."""
        from config import flatten

        merged: dict[str, Value] = flatten(tomllib.loads(self.study.experiment.read_text(encoding="utf-8")))
        for part in ({} if self.full else self.study.reduced, cell, method.settings, *more, self.changes):
            merged |= part
        merged["algorithm"] = method.algorithm
        own = ("", method.algorithm)  # the tables of other algorithms change nothing
        return {key: value for key, value in merged.items() if key.rpartition(".")[0] in own and key not in MACHINE}

    def grid(self, method: Method) -> tuple[Settings, ...]:
        """Return the method's points at this size."""
        return (method.full_grid or method.grid) if self.full else method.grid

    def tuning(self, method: Method) -> list[Job]:
        """Return one run per point of the grid; none where there is no choice."""
        grid = self.grid(method)
        if len(grid) == 1:
            return []
        cell, repeat = next(combinations(self.study.compare)), next(combinations(self.study.repeat))
        repeat |= {"seed": self.study.tuning_seed}
        quick: Settings = {"evaluate-every": 0, "central-test": False}
        jobs = [Job(method, point, {}, repeat, self.settings(method, cell, point, repeat, quick)) for point in grid]
        # Not on the test set, even where each site is given its part of that.
        return [replace(job, settings={k: v for k, v in job.settings.items() if k != "personal-test"}) for job in jobs]

    def reported(self, method: Method, point: Settings) -> list[Job]:
        """Return the runs that the tables show."""
        return [
            Job(method, point, cell, repeat, self.settings(method, cell, point, repeat))
            for cell in combinations(self.study.compare)
            for repeat in combinations(self.study.repeat)
        ]

    def outcome(self, job: Job) -> Outcome | None:
        """Read a run; None when it is not there, was cut off, or is of other settings than these are by now."""
        folder = self.folder / job.name
        try:
            end = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
            then = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        now = tomllib.loads(parsed(job.settings).to_toml())
        # A default that has changed since makes it another run; a key that was added or removed does not.
        if any(now[key] != then[key] for key in now.keys() & then.keys() - set(MACHINE)):
            return None
        lines = folder / "metrics.jsonl"  # a run that diverges in its first round has none
        records = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        return Outcome(records, **end)

    def choose(self, method: Method) -> Settings | None:
        """Return the best point of the grid by the held-out samples.

        None when the tuning runs are not all there, or when all of them diverged.
        """
        grid, jobs = self.grid(method), self.tuning(method)
        if not jobs:
            return grid[0]
        outcomes = [self.outcome(job) for job in jobs]
        if None in outcomes:
            return None
        values = [final(outcome, self.study.select) for outcome in outcomes if outcome]
        found = [(value, -place) for place, value in enumerate(values) if value is not None]
        return grid[-max(found)[1]] if found else None


def combinations(axes: Mapping[str, Sequence[Value]]) -> Iterator[dict[str, Value]]:
    """Yield every choice of a value for each axis; one empty choice without axes."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def final(outcome: Outcome, path: str) -> float | None:
    """Return a metric of a run's last round; None where it is not defined, and for a run that diverged."""
    return None if outcome.diverged or not outcome.records else metric(outcome.records[-1], path)


def metric(record: Record, path: str) -> float | None:
    """Return a number of a line, by a path such as ``"central.auroc"``; None where there is none."""
    value: Any = record
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else float(value)


def parsed(settings: Settings) -> RunConfig:
    """Check a run-config."""
    from config import RunConfig

    return RunConfig.parse(settings)


# ---------------------------------------------------------------------- many runs


def compute(settings: Settings, folder: Path) -> str:
    """Do one run and note how it ended; returns what is wrong when it cannot be done. In a worker process."""
    from client_app.fingerprint import fingerprint
    from config import MISTAKES
    from server_app import simulate
    from strategies import RunError

    shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut off
    where = {"runs-dir": str(folder.parent), "run-name": folder.name, "workers": 1, "threads": 1, "checkpoint-every": 0}
    started, diverged = time.monotonic(), ""
    try:
        simulate({**settings, **where})
    except RunError as error:
        diverged = str(error)
        if not re.search("diverges|NaN or infinity", diverged):
            return diverged
    except MISTAKES as error:
        return str(error)
    except SystemExit:  # told to stop; the executor would go on to the next run
        os._exit(143)
    end = {"diverged": diverged, "seconds": time.monotonic() - started, "version": fingerprint()}
    draft = folder / f"{OUTCOME}.draft"
    draft.write_text(json.dumps(end) + "\n", encoding="utf-8")
    draft.replace(folder / OUTCOME)
    return ""


def _start_worker() -> None:
    """Prepare a worker process: it cleans up when it is told to stop, and when its parent is gone."""
    import torch

    from server_app.worker import keep_freed_memory

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of a terminal; the parent stops its workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)
    logging.getLogger("edelweiss").setLevel(logging.CRITICAL)  # that a run diverged is said by its outcome


class StoppedError(Exception):
    """The sweep cannot go on; the message is for the user."""


class Workers:
    """A few processes that do runs, each reading a data set once; a context manager."""

    def __init__(self, count: int, data_root: str) -> None:
        self.count, self.data_root = count, data_root
        self._executor = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _start_worker)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes, in the middle of their runs if the sweep was stopped."""
        if kind is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            children = multiprocessing.active_children()
            for child in children:
                child.terminate()
            for child in children:
                child.join(timeout=10)
        self._executor.shutdown()

    def run(self, sweep: Sweep, jobs: Sequence[Job], progress: Progress) -> None:
        """Do all runs.

        Raises
        ------
        StoppedError
            When one cannot be done.
        """
        place = {"data-root": self.data_root} if self.data_root else {}
        futures: dict[Future[str], Job] = {
            self._executor.submit(compute, {**job.settings, **place}, sweep.folder / job.name): job for job in jobs
        }
        try:
            for future in as_completed(futures):
                job = futures[future]
                if wrong := future.result():
                    raise StoppedError(f"{job}: {wrong}")
                progress.finished(job, sweep.outcome(job))
        except BrokenProcessPool:
            raise StoppedError("a worker process died; the machine may be short of memory: try --jobs 1") from None


class Progress:
    """How far a sweep is: one live line on a terminal, a line per run elsewhere."""

    def __init__(self, done: int, total: int, select: str) -> None:
        self.done, self.total, self.select = done, total, select
        self.started, self.fresh = time.monotonic(), 0

    def finished(self, job: Job, outcome: Outcome | None) -> None:
        """Note the end of a run."""
        self.done, self.fresh = self.done + 1, self.fresh + 1
        assert outcome is not None, "the run has just been written"
        value = final(outcome, self.select)
        result = "diverged" if outcome.diverged else f"{self.select} {value:.4g}" if value is not None else "done"
        left = (time.monotonic() - self.started) / self.fresh * (self.total - self.done)
        text = f"[{self.done}/{self.total}] {job}: {result}, {outcome.seconds:.0f} s; about {left / 60:.1f} min left"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the live line."""
        if self.fresh and sys.stderr.isatty():
            print(file=sys.stderr)


def run(sweep: Sweep, workers: int, data_root: str) -> None:
    """Do all runs of a sweep that are not there yet.

    Raises
    ------
    StoppedError
        When one cannot be done.
    """
    methods = sweep.study.methods
    tuning = different(job for method in methods for job in sweep.tuning(method))
    # How many runs there will be does not depend on what is chosen.
    later = different(job for method in methods for job in sweep.reported(method, sweep.grid(method)[0]))
    missing = [job for job in tuning if sweep.outcome(job) is None]
    progress = Progress(len(tuning) - len(missing), len(tuning) + len(later), sweep.study.select)
    with contextlib.closing(progress), Workers(workers, data_root) as pool:
        pool.run(sweep, missing, progress)
        points = [(method, sweep.choose(method)) for method in methods]
        chosen = different(job for m, point in points if point is not None for job in sweep.reported(m, point))
        missing = [job for job in chosen if sweep.outcome(job) is None]
        progress.total = len(tuning) + len(chosen)
        progress.done = progress.total - len(missing)
        pool.run(sweep, missing, progress)


def different(jobs: Iterable[Job]) -> list[Job]:
    """Drop runs of equal settings: a method need not depend on all that is compared."""
    return list({job.name: job for job in jobs}.values())


def check(sweep: Sweep) -> None:
    """Parse every run of a sweep, whatever will be chosen.

    Raises
    ------
    config.ConfigError
        For the first that cannot be used.
    """
    for method in sweep.study.methods:
        for point in sweep.grid(method):
            for job in (*sweep.tuning(method), *sweep.reported(method, point)):
                parsed(job.settings)


# ---------------------------------------------------------------------- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study and write what came of it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument("name", nargs="?", choices=STUDIES, metavar="NAME", help="of a study; see --list")
    parser.add_argument("--list", action="store_true", help="list the studies")
    parser.add_argument("--full", action="store_true", help="the paper's own size, for a GPU; NAME-full.* are written")
    parser.add_argument(
        "--data-root",
        default=os.environ.get("EDELWEISS_DATA", ""),
        help="folder with mnist/, cifar10/, heart_disease/; default: the environment variable EDELWEISS_DATA",
    )
    parser.add_argument("--runs-dir", type=Path, default=REPO / "runs" / "reproduce", help="where the runs are kept")
    parser.add_argument("--results-dir", type=Path, default=REPO / "docs" / "results", help="where results are written")
    parser.add_argument("--jobs", type=int, default=cores, help="processes; default: one per core")
    parser.add_argument("--only-table", action="store_true", help="run nothing: write what the runs that are there say")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="'KEY=VALUE ...'",
        help="change keys of all runs, to try something; needs a --results-dir of its own",
    )
    options = parser.parse_args(arguments)
    if options.list:
        for study in STUDIES.values():
            print(f"{study.name:20}{study.title}")
        return 0
    if not options.name:
        parser.error("NAME is missing; --list lists the studies")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    if options.set and options.results_dir == parser.get_default("results_dir"):
        parser.error("--set changes the study: name another --results-dir, or the published table would be replaced")

    from benchmarks.tables import write
    from config import ConfigError, read_overrides

    study = STUDIES[options.name]
    # Stopped by a service manager, it ends as with Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        folder = options.runs_dir.expanduser().resolve() / study.name
        sweep = Sweep(study, options.full, folder, read_overrides(options.set))
        check(sweep)
        if not options.only_table:
            run(sweep, options.jobs, options.data_root)
        print(write(sweep, options.results_dir))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except StoppedError as error:
        print(f"error: {error}\nFinished runs are kept: the same command goes on from there.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; finished runs are kept: the same command goes on from there", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
