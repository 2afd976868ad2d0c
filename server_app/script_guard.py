"""What ends a worker process whose start would begin another run, before it imports what takes seconds."""

from __future__ import annotations

import multiprocessing
import sys

NAME = "edelweiss-worker"
UNGUARDED = 86  # exit code of a worker whose import of the main script began a run of its own


def leave_unguarded_script() -> None:
    """End this process if it is a worker that is still being started.

    A worker that is no fork imports the main script first. If the script calls `simulate` as it is imported, the worker
    would start a run instead of joining one.
    """
    process = multiprocessing.current_process()
    if process.name.startswith(NAME) and getattr(process, "_inheriting", False):  # as multiprocessing itself checks
        sys.exit(UNGUARDED)
