"""`python -m ...` as a process of its own that begins at once: a fork of the tests' one, which has imported everything.

A new interpreter takes seconds for its imports; a few tests start one all the same, each of another command.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

FORK = multiprocessing.get_context("fork")


class Ended(NamedTuple):
    """How a process ended, and what it said."""

    returncode: int | None
    stdout: str
    stderr: str


class Started(NamedTuple):
    """A process that goes on, with a session of its own; ``ended`` waits for its end."""

    pid: int
    ended: Callable[[], Ended]


@contextmanager
def started(work: Callable[[], object], folder: Path) -> Iterator[Started]:
    """Do something in a process of its own, in a folder; what it starts are forks, too, and end with the block."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:

        def child() -> None:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
            os.chdir(folder)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)  # pytest has put others there
            multiprocessing.get_context = lambda method=None: FORK  # type: ignore[assignment, misc]  # forks
            work()

        def ended() -> Ended:
            process.join(600)
            for file in (out, err):
                file.seek(0)
            return Ended(process.exitcode, out.read(), err.read())

        process = FORK.Process(target=child)
        process.start()
        assert process.pid is not None
        try:
            yield Started(process.pid, ended)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()


def begun(arguments: Sequence[str], folder: Path, anew: Collection[str] = ()) -> AbstractContextManager[Started]:
    """Begin what ``python ARGUMENTS`` does in a folder; packages in ``anew`` are those that lie there."""

    def work() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] in anew]:
            del sys.modules[name]
        sys.path.insert(0, str(folder))
        option, *rest = arguments
        if option == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(arguments)
            runpy.run_path(str(folder / option), run_name="__main__")

    return started(work, folder)


def python(arguments: Sequence[str], folder: Path, anew: Collection[str] = ()) -> Ended:
    """Return what that did in the end."""
    with begun(arguments, folder, anew) as process:
        return process.ended()
