"""`python -m ...` as a process of its own that begins at once: a fork of the tests' one, which has imported everything.

A new interpreter takes seconds for its imports; a few tests start one all the same, each of another command.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

FORK = multiprocessing.get_context("fork")


class Ended(NamedTuple):
    """How a process ended, and what it said."""

    returncode: int | None
    stdout: str
    stderr: str


def forked(work: Callable[[], object], folder: Path, timeout: float = 600) -> Ended:
    """Do something in a process of its own, in a folder; what it starts are forks, too."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:

        def child() -> None:
            os.setsid()
            os.chdir(folder)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)  # pytest has put others there
            multiprocessing.get_context = lambda method=None: FORK  # type: ignore[assignment, misc]
            work()

        process = FORK.Process(target=child)
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
        for file in (out, err):
            file.seek(0)
        return Ended(process.exitcode, out.read(), err.read())


def python(arguments: Sequence[str], folder: Path, anew: Collection[str] = ()) -> Ended:
    """Do what ``python ARGUMENTS`` does in a folder; packages in ``anew`` are those that lie there."""

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

    return forked(work, folder)
