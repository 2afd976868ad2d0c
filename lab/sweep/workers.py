"""Processes that do the runs of a sweep."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from edelweiss.common.files import read_json
from edelweiss.config.plug_ins import packed, unpack
from edelweiss.lab.compare.runs import DIVERGED, OUTCOME, PAUSE
from edelweiss.lab.sweep.job import Job, different
from edelweiss.lab.sweep.jobs import Sweep
from edelweiss.lab.sweep.progress import Progress
from edelweiss.server_app.console import Progress as Console
from edelweiss.server_app.script_guard import NAME, UNGUARDED, WHY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.process import BaseProcess
    from pathlib import Path
    from types import FrameType

    from edelweiss.common import Value
    from edelweiss.lab.compare.runs import Settings
    from edelweiss.lab.sweep.study import Study
    from edelweiss.server_app.recorder import Record


PATIENCE = 10.0  # seconds that a stopped worker has to clean up


class _PausedError(BaseException):
    """A run has come to the round that it is stopped after."""


class _Until(Console):
    """Prints nothing, and stops a run after a round, whose line is written by then; 0: never."""

    def __init__(self, last: int) -> None:
        super().__init__(quiet=True)
        self.last = last

    def round(self, record: Record, rounds: int) -> None:
        if record["round"] == self.last:
            raise _PausedError(f"it is paused after round {self.last}")


def compute(settings: Settings, folder: Path, until: int = 0, *, tuning: bool = False) -> str:
    """Do one run and note how it ended; returns what is wrong when it cannot be done. In a worker process.

    With ``until`` it is paused after that round, and goes on from there when it is next asked for. ``tuning`` is noted.
    """
    from edelweiss.config import MISTAKES
    from edelweiss.federation import RunError
    from edelweiss.federation.fingerprint import fingerprint
    from edelweiss.server_app import simulate

    end, before = OUTCOME, 0.0
    where: dict[str, Value] = {"workers": 1, "threads": 1, "checkpoint-every": until, "report": False}
    if (folder / PAUSE).exists() and (paused := read_json(folder / PAUSE))["version"] == fingerprint():
        before = float(paused["seconds"])
        (folder / PAUSE).unlink()  # cut off from here on, it is done anew
        where |= {"resume": str(folder)}
    else:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut off
    where |= {"runs-dir": str(folder.parent), "run-name": folder.name}
    started, diverged = time.monotonic(), ""
    try:
        simulate({**settings, **where}, progress=_Until(until))
    except _PausedError:
        end = PAUSE
    except RunError as error:
        diverged = str(error)
        if not DIVERGED.search(diverged):
            return diverged
    except MISTAKES as error:
        return str(error)
    except SystemExit:  # stopped; the executor would go on to the next run
        os._exit(143)
    said = {"diverged": diverged, "seconds": before + time.monotonic() - started, "version": fingerprint()}
    said |= {"tuning": True} if tuning else {}
    draft = folder / f"{end}.draft"
    draft.write_text(json.dumps(said) + "\n", encoding="utf-8")
    draft.replace(folder / end)
    return ""


def _start_worker(given: bytes) -> None:
    """Prepare a worker process: it cleans up when it is stopped, or when its parent is gone; see `plug_ins.packed`."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of a terminal; the parent stops its workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    torch.set_num_threads(1)
    unpack(given)
    logging.getLogger("edelweiss").setLevel(logging.CRITICAL)  # that a run diverged is said by its outcome


class StoppedError(Exception):
    """The sweep cannot go on; the message is for the user."""


class Workers:
    """A few processes that do runs, each reading a data set once; a context manager."""

    def __init__(self, count: int, data_root: str) -> None:
        self.count, self.data_root = count, data_root
        spawn: Any = copy.copy(multiprocessing.get_context("spawn"))
        self._processes: list[BaseProcess] = []
        start = spawn.Process

        def process(*arguments: Any, **keywords: Any) -> BaseProcess:
            self._processes.append(start(*arguments, **keywords, name=NAME))  # by which the script's guard knows it
            return self._processes[-1]

        spawn.Process = process
        self._executor = ProcessPoolExecutor(count, spawn, _start_worker, (packed(),))

    def _submit(self, settings: Settings, folder: Path, job: Job) -> Future[str]:
        return self._executor.submit(compute, settings, folder, job.until, tuning=job.tuning)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """End the processes, in the middle of their runs if the sweep was stopped."""
        if kind is not None:
            self._stop()
        # Waits for the executor's own thread: Python's exit would speak to one that is just ending, and fail.
        self._executor.shutdown()

    def _stop(self) -> None:
        children = multiprocessing.active_children()
        for end in ("terminate", "terminate", "kill"):  # a signal that a finalizer meets is lost, see `stops`
            for child in children:
                getattr(child, end)()
            deadline = time.monotonic() + PATIENCE
            for child in children:
                child.join(max(0.0, deadline - time.monotonic()))

    def _unguarded(self) -> bool:
        """Return whether the processes of a broken executor ended as they imported the main script."""
        self._stop()
        self._executor.shutdown()  # its thread asks for exit codes, too, and only one of two who ask gets an answer
        return any(process.exitcode == UNGUARDED for process in self._processes)

    def run(self, sweep: Sweep[Study], jobs: Sequence[Job], progress: Progress) -> None:
        """Do all runs; StoppedError when one cannot be done."""
        futures: dict[Future[str], Job] = {
            self._submit({**job.settings, **sweep.place(job, self.data_root)}, sweep.folder / job.name, job): job
            for job in jobs
        }
        try:
            with stops() as require_none:
                for future in as_completed(futures):
                    job = futures[future]
                    if wrong := future.result():
                        raise StoppedError(f"{job}: {wrong}")
                    progress.finished(job, sweep.outcome(job))
                    require_none()
        except BrokenProcessPool:
            if self._unguarded():
                why = f"{WHY}: call sweep() or recommend() under if __name__ == '__main__'"
            else:
                why = "a worker process died; the machine may be short of memory: try --jobs 1"
            raise StoppedError(why) from None


@contextlib.contextmanager
def stops() -> Iterator[Callable[[], None]]:
    """Record what Ctrl-C or SIGTERM raises within the block; yields a function that raises it again if it was lost.

    Python ignores what is raised in a finalizer, and after a long collection of garbage that is where a signal is met.
    """
    raised: list[BaseException] = []

    def recorded(before: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
        def handler(number: int, frame: FrameType | None) -> None:
            try:
                before(number, frame)
            except BaseException as error:
                raised.append(error)
                raise

        return handler

    def require_none() -> None:
        if raised:
            raise raised[0]

    here = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if here}
    handled = {number: before for number, before in handlers.items() if callable(before)}
    for number, before in handled.items():
        signal.signal(number, recorded(before))
    try:
        yield require_none
    finally:
        for number, before in handled.items():
            signal.signal(number, before)


class RayWorkers(Workers):
    """The same on a Ray cluster, or on one that is started here; the runs' folder has to be shared by its machines."""

    def __init__(self, count: int, data_root: str) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a warning else
        import ray

        self.count, self.data_root = count, data_root
        self._ray, self._started = ray, not ray.is_initialized()
        if self._started:
            there = bool(os.environ.get("RAY_ADDRESS"))
            size: dict[str, Any] = {} if there else {"num_cpus": count, "include_dashboard": False}
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **size)
        self._compute, self._given = ray.remote(num_cpus=1)(_compute_quietly), packed()

    def _submit(self, settings: Settings, folder: Path, job: Job) -> Future[str]:
        found: Future[str] = self._compute.remote(settings, folder, job.until, job.tuning, self._given).future()
        return found

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """End what was started here."""
        if self._started:
            self._ray.shutdown()


def _compute_quietly(settings: Settings, folder: Path, until: int, tuning: bool, given: bytes) -> str:
    """Do one run in a worker of Ray, as in one of our own."""
    import torch

    torch.set_num_threads(1)
    unpack(given)
    logging.getLogger("edelweiss").setLevel(logging.CRITICAL)
    return compute(settings, folder, until, tuning=tuning)


ENGINES: dict[str, type[Workers]] = {"processes": Workers, "ray": RayWorkers}


def run(sweep: Sweep[Study], workers: int, data_root: str, engine: str = "processes") -> None:
    """Do all missing runs of a sweep, ``workers`` at a time; the results do not depend on that number.

    Raises
    ------
    StoppedError
        When one cannot be done.
    """
    methods = sweep.study.methods
    # How many runs there will be does not depend on what is chosen; the grids that grow make it more.
    later = different(job for method in methods for job in sweep.reported(method, sweep.grid(method)[0]))
    progress = Progress(sweep.study.select)
    with contextlib.closing(progress), ENGINES[engine](workers, data_root) as pool:

        def missing(jobs: list[Job], rest: int) -> list[Job]:
            there: list[Job] = []
            found: list[Job] = []
            for job in jobs:
                (found if sweep.outcome(job) is None else there).append(job)
            progress.expect(there, len(found) + rest)
            return found

        def tuning() -> list[Job]:
            return different(job for method in methods for job in sweep.tuning(method))

        while jobs := missing(tuning(), len(later)):  # again, for what the grids grew by, and for those that go on
            pool.run(sweep, jobs, progress)
        pool.run(sweep, missing(tuning() + different(sweep.chosen()), 0), progress)
