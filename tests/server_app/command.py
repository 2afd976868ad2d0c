"""``edelweiss``, as a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edelweiss.lab.cli import main

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Command:
    """A command that runs: what it says, and a function that waits for its end and returns the exit code."""

    pid: int
    stdout: IO[str]
    stderr: IO[str]
    wait: Callable[[], int | None]


@contextlib.contextmanager
def command(run_config: str, *, fresh: bool = False) -> Iterator[Command]:
    """Start it, in a session of its own, which ends with the block.

    It is a fork of this process, which has imported everything: a new interpreter (``fresh``) takes seconds for that.
    """
    started = _fresh(run_config) if fresh else _forked(run_config)
    with started.stdout, started.stderr:
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def _fresh(run_config: str) -> Command:
    words = [sys.executable, "-u", "-m", "edelweiss", "--run-config", run_config]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stderr is not None
    return Command(process.pid, process.stdout, process.stderr, lambda: process.wait(timeout=600))


def _forked(run_config: str) -> Command:
    processes = multiprocessing.get_context("fork")
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    ready = processes.Event()

    def work() -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
        ready.set()
        os.dup2(out_end, 1)
        os.dup2(err_end, 2)
        for end in (out, out_end, err, err_end):
            os.close(end)
        sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)  # pytest has put others there
        sys.exit(main(["--run-config", run_config]))

    process = processes.Process(target=work)
    process.start()
    ready.wait(600)  # before that there is no session to send a signal to
    os.close(out_end)
    os.close(err_end)

    def wait() -> int | None:
        process.join(600)
        return process.exitcode

    assert process.pid is not None
    return Command(process.pid, os.fdopen(out), os.fdopen(err), wait)
