"""A worker process of the local engine: it keeps one model and one thread, and answers for any site."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import shutil
import signal
import sys
from collections import deque
from typing import TYPE_CHECKING

import torch
from flwr.app import RecordDict
from flwr.app.message import make_message

from client_app.app import call
from server_app.segments import Segment, Segments, read, split

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from flwr.app import Context

log = logging.getLogger("edelweiss")

DEPTH = 2  # messages at a worker: one in work, one waiting, so that it is never idle between two
NAME = "edelweiss-worker"
UNGUARDED = 86  # exit code of a worker whose import of the main script began a run of its own
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step, not return it to the kernel."""
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # another C library manages its memory in its own way
        return
    trim_threshold, mmap_threshold = -1, -3
    libc.mallopt(mmap_threshold, 2**30)
    libc.mallopt(trim_threshold, 2**31 - 1)


def leave_unguarded_script() -> None:
    """End this process if it is a worker that is still being started.

    A worker that is no fork imports the main script first. If the script calls `simulate` as it is imported, the worker
    would start a run instead of joining one.
    """
    process = multiprocessing.current_process()
    if process.name.startswith(NAME) and getattr(process, "_inheriting", False):  # as multiprocessing itself checks
        sys.exit(UNGUARDED)


def work(pipe: Connection, inherited: list[Connection], folder: str, owner: str, contexts: list[Context]) -> None:
    """Serve messages until told to stop, or until the coordinator is gone; the body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of a terminal; the coordinator ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by `Pool` until here
    for other in inherited:  # or the coordinator's end would stay open after its death
        other.close()
    keep_freed_memory()
    torch.set_num_threads(1)
    try:
        serve(pipe, Segments(folder, owner), contexts)
    except (EOFError, ConnectionError):  # the coordinator was killed and could not clean up
        shutil.rmtree(folder, ignore_errors=True)


def serve(pipe: Connection, segments: Segments, contexts: list[Context]) -> None:
    """Answer one message after the other."""
    mapped: dict[str, Segment] = {}
    lent: deque[Segment] = deque()
    while (task := pipe.recv()) is not None:
        site, metadata, small, path, layout = task
        if path and path not in mapped:
            mapped[path] = Segment(path)
        records = read(mapped[path].map if path else None, layout)
        answer = call(make_message(metadata, RecordDict({**small, **records})), contexts[site])
        if answer.has_error():
            pipe.send((answer.metadata, answer.error, {}, "", {}))
            continue
        arrays, small = split(answer.content)
        segment, layout = segments.write(arrays)
        pipe.send((answer.metadata, None, small, segment.path if segment else "", layout))
        if segment:
            # The coordinator reads an answer before it sends another message, so at most DEPTH are unread.
            lent.append(segment)
            if len(lent) > DEPTH:
                segments.free.append(lent.popleft())


def why(code: int) -> str:
    """Say what the exit code of a worker means, as the rest of a sentence."""
    if code == 1:
        return ": an exception, its traceback is above"
    if code >= 0:
        return ""
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    if code == -signal.SIGKILL:
        return f" ({name}): as a rule the machine ran out of memory; fewer workers or a smaller batch-size take less"
    return f" ({name}): it crashed in native code" if -code in CRASHES else f" ({name})"
