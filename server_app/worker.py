"""A worker process of the local engine, with one model and one thread, which serves any site."""

from __future__ import annotations

import gc
import logging
import shutil
import signal
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import RecordDict
from flwr.app.message import make_message

from edelweiss.client_app.app import call_together
from edelweiss.common.memory import RARELY, keep_freed_memory
from edelweiss.config.plug_ins import unpack
from edelweiss.server_app.shared_memory import Layout, Segment, Segments, read, split

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from flwr.app import ArrayRecord, Context, Message

log = logging.getLogger("edelweiss")

Task = tuple[Any, dict[str, Any], str, Layout]
"""A message to a worker: metadata, small records, the segment of its arrays, and their layout in it."""

DEPTH = 2  # stacks at a worker: one running, one waiting, so that it is never idle
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def work(
    pipe: Connection, inherited: list[Connection], folder: str, owner: str, contexts: list[Context], given: bytes
) -> None:
    """The main function of a worker process: serve messages until told to stop, or until the coordinator dies."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes of a terminal; the coordinator ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by `Pool` until here
    for other in inherited:  # otherwise the coordinator's end would stay open after its death
        other.close()
    keep_freed_memory()
    unpack(given)
    gc.set_threshold(*RARELY)
    gc.freeze()  # what is here by now stays; in a fork, to look at it would copy it
    torch.set_num_threads(1)
    try:
        serve(pipe, Segments(folder, owner), contexts)
    except (EOFError, ConnectionError):  # the coordinator was killed
        shutil.rmtree(folder, ignore_errors=True)


def serve(pipe: Connection, segments: Segments, contexts: list[Context]) -> None:
    """Answer stacks of messages."""
    mapped: dict[str, Segment] = {}
    lent: deque[Segment] = deque()
    while (tasks := pipe.recv()) is not None:
        messages = _messages(tasks, mapped)
        answers = call_together(messages, [contexts[message.metadata.dst_node_id - 1] for message in messages])
        contents = [({}, {}) if answer.has_error() else split(answer.content) for answer in answers]
        segment, layouts = segments.write([arrays for arrays, _ in contents])
        results = [
            (answer.metadata, answer.error if answer.has_error() else None, small, layout)
            for answer, (_, small), layout in zip(answers, contents, layouts, strict=True)
        ]
        pipe.send((segment.path if segment else "", results))
        if segment:
            # The coordinator reads answers before it sends other messages, so at most DEPTH segments are unread.
            lent.append(segment)
            if len(lent) > DEPTH:
                segments.free.append(lent.popleft())


def _messages(tasks: list[Task], mapped: dict[str, Segment]) -> list[Message]:
    """Convert tasks to messages, reading shared arrays once."""
    read_before: dict[tuple[str, int], dict[str, ArrayRecord]] = {}
    messages = []
    for metadata, small, path, layout in tasks:
        if path and path not in mapped:
            mapped[path] = Segment(path)
        if (records := read_before.get((path, id(layout)))) is None:
            records = read_before[path, id(layout)] = read(mapped[path].map if path else None, layout)
        messages.append(make_message(metadata, RecordDict({**small, **records})))
    return messages


def why(code: int) -> str:
    """Explain a worker's exit code, to complete a sentence."""
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
