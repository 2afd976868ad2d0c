"""The local engine: a Flower Grid that calls the ClientApp directly, in this process or in a few of its own.

A worker process keeps one model and one thread. Vectors travel through files in shared memory (a broadcast to all
sites is written once), everything else through a pipe. What a site remembers is in files too, in the same folder or in
the run's ``state-dir``, so that any worker can serve any site.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import traceback
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from models import resolve_device
from server_app.segments import Layout, Segment, Segments, read, split

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from flwr.supercore.run import Run

    from config import RunConfig

log = logging.getLogger("edelweiss")

CLIENT_RAISED = 2  # flwr's ErrorCode.CLIENT_APP_RAISED_EXCEPTION
WHY = {
    -9: "the machine ran out of memory",
    1: "see above; a script that calls simulate() must do so under if __name__ == '__main__'",
}  # by exit code of a worker
DEPTH = 2  # messages at a worker: one in work, one waiting, so that it is never idle between two
ROOM = 2**30  # bytes that must be free in /dev/shm to use it; containers often have 64 MB there


def call(message: Message, context: Context) -> Message:
    """Let the ClientApp answer; an exception becomes an error answer, as in Flower's own engines."""
    from client_app.app import app

    try:
        return app(message, context)
    except Exception as error:  # the engine must survive whatever a client does
        log.error("%s", traceback.format_exc())
        return Message(Error(CLIENT_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step, not return it to the kernel."""
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # another C library manages its memory in its own way
        return
    trim_threshold, mmap_threshold = -1, -3
    libc.mallopt(mmap_threshold, 2**30)
    libc.mallopt(trim_threshold, 2**31 - 1)


def work(pipe: Connection, inherited: list[Connection], folder: str, owner: str, contexts: list[Context]) -> None:
    """Serve messages until told to stop, or until the coordinator is gone; the body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of a terminal; the coordinator ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by `_start_workers` until here
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


@dataclass
class Broadcast:
    """Arrays on their way to one or many sites: written once, freed when the last of them has answered."""

    records: dict[str, ArrayRecord]
    messages: int = 0
    segment: Segment | None = None
    layout: Layout = field(default_factory=dict)


class LocalGrid(Grid):
    """K simulated sites on this machine, as a context manager.

    Parameters
    ----------
    config : RunConfig
        ``sites`` and ``workers``: 0 takes one per core, at most one per site, and one for a GPU; 1 works in this
        process.
    run_id : int
        Any number that no other run on this machine has.
    fork : bool
        Whether workers may be forks of this process, which start at once and share its data. Not where it has threads.
    """

    def __init__(self, config: RunConfig, run_id: int, *, fork: bool = True) -> None:
        self.config, self.run_id = config, run_id
        on_gpu = resolve_device(config.device).startswith("cuda")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = min(config.workers or (1 if on_gpu else cores), config.sites)
        # A forked worker shares the data sets with this process. After CUDA or OpenMP threads have started it would
        # hang, so then it is a fresh process that loads its own.
        threaded = torch.cuda.is_available() or torch.get_num_threads() > 1
        fork = fork and "fork" in multiprocessing.get_all_start_methods() and not threaded
        self._processes: Any = multiprocessing.get_context("fork" if fork else "spawn")
        self._identifiers, self._names = itertools.count(1), itertools.count()
        self._queue: deque[Message] = deque()
        self._at_worker: dict[Any, dict[str, Message]] = {}
        self._children: dict[Any, Any] = {}
        self._maps: dict[str, Segment] = {}  # answers, by path
        self._broadcast: dict[int, Broadcast] = {}  # in use, by `_key`

    def __enter__(self) -> LocalGrid:
        """Make the folder for this run; workers start with the first message that needs them."""
        free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
        self.folder = tempfile.mkdtemp(prefix="edelweiss-", dir="/dev/shm" if free > ROOM else None)
        sites, run_config = self.config.sites, self.config.flat()
        given = self.config.state_dir
        self.state = Path(given).expanduser().absolute() if given else Path(self.folder) / "state"
        self.contexts = [
            Context(
                run_id=self.run_id,
                node_id=site + 1,
                node_config={
                    "partition-id": site,
                    "num-partitions": sites,
                    "state-dir": str(self.state),
                },
                state=RecordDict(),
                run_config=run_config,
            )
            for site in range(sites)
        ]
        self._segments = Segments(self.folder, "coordinator")
        if (
            getattr(TaskIdentity, "_run_id", None) is None
        ):  # Flower's messages carry it; set in every process that Flower starts
            TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = self.run_id, 1, 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers and remove the folder."""
        for pipe, child in self._children.items():
            try:
                pipe.send(None)
            except OSError:
                child.kill()
        for pipe, child in self._children.items():
            child.join(timeout=5 if error is None else 0.5)
            if child.is_alive():
                child.kill()
                child.join()
            pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.state / f"run-{self.run_id}", ignore_errors=True)  # of a run that stopped

    # ------------------------------------------------------------------ Flower's Grid

    def set_run(self, run: Run) -> None:
        """Do nothing: a local grid belongs to one run."""

    @property
    def run(self) -> Run:
        """Not known here: there is no SuperLink."""
        raise AttributeError("the local engine has no Flower run")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (Flower keeps this for old apps)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the addresses of the sites, 1 to K."""
        return range(1, self.config.sites + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages; returns their identifiers.

        Whoever pushes again has all answers, or waits no longer for those that are missing.
        """
        self._give_up()
        identifiers = []
        for message in messages:
            identifier = str(next(self._identifiers))
            message.metadata.__dict__["_message_id"] = identifier  # as Flower's own grids set it
            self._queue.append(message)
            identifiers.append(identifier)
            arrays, _ = split(message.content)
            self._broadcast.setdefault(_key(message), Broadcast(arrays)).messages += 1
        if self.workers > 1 and self._queue and self._queue[0].metadata.message_type != "query":
            self._start_workers()
            self._hand_out()
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return answers that are there, waiting up to a second for the first.

        Without workers a site does its work now, one message per call: an answer is folded into a mean before
        the next one exists.
        """
        if not self._children:
            if not self._queue:
                return []
            message = self._queue.popleft()
            self._release(message)
            return [call(message, self.contexts[message.metadata.dst_node_id - 1])]
        answers: list[Message] = []
        for pipe in wait(list(self._children), timeout=1.0):
            answers += self._take(pipe)
        self._hand_out()
        return answers

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and return all answers."""
        missing = set(self.push_messages(messages))
        answers: list[Message] = []
        while missing:
            for answer in self.pull_messages(missing):
                missing.discard(answer.metadata.reply_to_message_id)
                answers.append(answer)
        return answers

    # ------------------------------------------------------------------ workers

    def _start_workers(self) -> None:
        while len(self._children) < self.workers:
            ours, theirs = self._processes.Pipe()
            inherited = [ours, *self._children] if self._processes.get_start_method() == "fork" else []
            # A name of its own, also for a replacement: nobody writes to another's segments.
            arguments = (theirs, inherited, self.folder, f"worker-{next(self._names)}", self.contexts)
            child = self._processes.Process(target=work, args=arguments, daemon=True)
            # A Ctrl-C between the fork and the worker's first line would end it with a traceback; it waits till then.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                child.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
            self._children[ours] = child
            self._at_worker[ours] = {}

    def _give_up(self) -> None:
        """Drop what is still to be done, and replace the workers that are at it: they hang, or are too slow."""
        while self._queue:
            self._release(self._queue.popleft())
        for pipe in [pipe for pipe, messages in self._at_worker.items() if messages]:
            child = self._children.pop(pipe)
            child.kill()
            child.join()
            pipe.close()
            for message in self._at_worker.pop(pipe).values():
                self._release(message)

    def _hand_out(self) -> None:
        """Keep every worker busy, the least busy first."""
        while self._queue and self._at_worker:
            pipe = min(self._at_worker, key=lambda p: len(self._at_worker[p]))
            if len(self._at_worker[pipe]) >= DEPTH:
                return
            message = self._queue.popleft()
            identifier = message.metadata.message_id
            _, small = split(message.content)
            broadcast = self._broadcast[_key(message)]
            if not broadcast.layout:
                broadcast.segment, broadcast.layout = self._segments.write(broadcast.records)
            path = broadcast.segment.path if broadcast.segment else ""
            self._at_worker[pipe][identifier] = message
            with contextlib.suppress(OSError):  # it died; `_take` notices
                pipe.send((message.metadata.dst_node_id - 1, message.metadata, small, path, broadcast.layout))

    def _take(self, pipe: Any) -> list[Message]:
        """Receive one answer, or learn that the worker is gone."""
        try:
            metadata, error, small, path, layout = pipe.recv()
        except (EOFError, OSError):
            child = self._children.pop(pipe)
            child.join()
            lost = self._at_worker.pop(pipe)
            text = f"its worker process ended with exit code {child.exitcode}: {WHY.get(child.exitcode, 'see above')}"
            if not self._children:
                lost |= {message.metadata.message_id: message for message in self._queue}
                self._queue.clear()
            for message in lost.values():
                self._release(message)
            return [Message(Error(CLIENT_RAISED, text), reply_to=message) for message in lost.values()]
        identifier = metadata.reply_to_message_id
        self._release(self._at_worker[pipe].pop(identifier))
        if error is not None:
            return [make_message(metadata, error=error)]
        segment = self._mapped(path) if path else None
        records = read(segment.map if segment else None, layout)
        return [make_message(metadata, RecordDict({**small, **records}))]

    def _mapped(self, path: str) -> Segment:
        if path not in self._maps:
            self._maps[path] = Segment(path)
        return self._maps[path]

    def _release(self, message: Message) -> None:
        """Free a broadcast's segment with its last message."""
        broadcast = self._broadcast[_key(message)]
        broadcast.messages -= 1
        if not broadcast.messages:
            if broadcast.segment:
                self._segments.free.append(broadcast.segment)
            del self._broadcast[_key(message)]


def _key(message: Message) -> int:
    """Identify what a message carries: messages to many sites share one record, see `FederatedStrategy`."""
    return id(next(iter(message.content.array_records.values()), None))


def unused_run_id() -> int:
    """Return a number for a run outside Flower."""
    return int.from_bytes(os.urandom(6), "big")
