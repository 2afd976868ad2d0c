"""Processes that do the runs of a sweep, and a line that says how far they are."""

from __future__ import annotations

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
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from benchmarks.sweep import OUTCOME, Job, Outcome, Sweep, final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from benchmarks.studies import Settings


def compute(settings: Settings, folder: Path) -> str:
    """Do one run and note how it ended; returns what is wrong when it cannot be done. In a worker process."""
    from config import MISTAKES
    from federation import RunError
    from federation.fingerprint import fingerprint
    from server_app import simulate

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

    def __init__(self, select: str) -> None:
        self.done, self.total, self.select = 0, 0, select
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
