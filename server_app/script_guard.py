"""Ends a worker process whose import of the main script would start another run, before slow imports."""

from __future__ import annotations

import multiprocessing
import sys

NAME = "edelweiss-worker"
UNGUARDED = 86  # exit code of a worker whose import of the main script began a run of its own
WHY = "each worker process imports the script that was started, and this script would start a run there"


def leave_unguarded_script() -> None:
    """End this process if it is a worker that is still starting.

    A spawned worker imports the main script first; one that calls `simulate` or `sweep` then would start another run.
    """
    process = multiprocessing.current_process()
    if process.name.startswith(NAME) and getattr(process, "_inheriting", False):  # as multiprocessing itself checks
        sys.exit(UNGUARDED)
