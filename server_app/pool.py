"""The local engine's pool of worker processes.

Vectors are passed in shared memory, where arrays sent to many sites are written once; everything else through pipes.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import signal
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode

from edelweiss.common import records_in
from edelweiss.config.plug_ins import packed
from edelweiss.federation import RunError
from edelweiss.server_app.script_guard import NAME, UNGUARDED, WHY
from edelweiss.server_app.shared_memory import Layout, Segment, Segments, read, split
from edelweiss.server_app.worker import DEPTH, Task, why, work

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class SharedRecords:
    """Arrays in shared memory for one or many sites, freed once all have replied."""

    records: dict[str, ArrayRecord]
    messages: int = 0
    segment: Segment | None = None
    layout: Layout = field(default_factory=dict)


@dataclass
class Worker:
    """A worker process and its unanswered stacks of messages."""

    process: Any
    stacks: deque[list[Message]] = field(default_factory=deque)


class Pool:
    """A pool of worker processes that answer messages.

    Parameters
    ----------
    count : int
        Number of processes.
    method : str
        How they start: "fork" or "spawn".
    folder : str
        The folder of shared-memory segments.
    contexts : list of Context
        Of the sites.
    stack : int
        Messages sent to a worker at once.
    """

    def __init__(self, count: int, method: str, folder: str, contexts: list[Context], stack: int = 1) -> None:
        self.count, self.folder, self.contexts, self.stack = count, folder, contexts, stack
        self.alive: dict[Connection, Worker] = {}
        self._processes: Any = multiprocessing.get_context(method)
        self._forks = method == "fork"
        self._given = b"" if self._forks else packed(contexts[0].run_config)  # for spawned processes; forks inherit it
        self._names = itertools.count()
        self._queue: deque[Message] = deque()
        self._segments = Segments(folder, "coordinator")
        self._maps: dict[str, Segment] = {}  # answers, by path
        self._broadcast: dict[int, SharedRecords] = {}  # in use, by `_key`

    def push(self, messages: Iterable[Message]) -> None:
        """Queue messages; missing workers are started."""
        for message in messages:
            self._queue.append(message)
            arrays, _ = split(message.content)
            self._broadcast.setdefault(_key(message), SharedRecords(arrays)).messages += 1
        self._start()
        self._hand_out()

    def pull(self, timeout: float) -> list[Message]:
        """Return available replies, waiting up to ``timeout`` seconds for the first."""
        answers: list[Message] = []
        for pipe in wait(list(self.alive), timeout):
            assert isinstance(pipe, Connection)
            answers += self._take(pipe)
        self._hand_out()
        return answers

    def give_up(self) -> None:
        """Drop pending messages and end the busy workers, which hang or are too slow."""
        while self._queue:
            self._release(self._queue.popleft())
        for pipe in [pipe for pipe, worker in self.alive.items() if worker.stacks]:
            worker = self.alive.pop(pipe)
            worker.process.kill()
            worker.process.join()
            pipe.close()
            for message in itertools.chain(*worker.stacks):
                self._release(message)

    def close(self, patience: float) -> None:
        """End all workers; kill them after this many seconds."""
        for pipe, worker in self.alive.items():
            try:
                pipe.send(None)
            except OSError:
                worker.process.kill()
        for pipe, worker in self.alive.items():
            worker.process.join(timeout=patience)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            pipe.close()
        self.alive.clear()

    def _start(self) -> None:
        while len(self.alive) < self.count:
            ours, theirs = self._processes.Pipe()
            # Each worker, including a replacement, has a unique name, so that none writes to another's segments.
            name = f"{NAME}-{next(self._names)}"
            inherited = [ours, *self.alive] if self._forks else []
            arguments = (theirs, inherited, self.folder, name, self.contexts, self._given)
            process = self._processes.Process(target=work, args=arguments, name=name, daemon=True)
            # Ctrl-C is blocked until the worker's first line, or it would end with a traceback.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
            self.alive[ours] = Worker(process)

    def _hand_out(self) -> None:
        """Send stacks to the workers, the least busy first."""
        while self._queue and self.alive:
            pipe, worker = min(self.alive.items(), key=lambda item: len(item[1].stacks))
            if len(worker.stacks) >= DEPTH:
                return
            worker.stacks.append(take(self._queue, self.stack))
            with contextlib.suppress(OSError):  # it died; `_take` notices
                pipe.send([self._task(message) for message in worker.stacks[-1]])

    def _task(self, message: Message) -> Task:
        """Convert a message to a task, with its arrays in a segment."""
        _, small = split(message.content)
        broadcast = self._broadcast[_key(message)]
        if not broadcast.layout:
            broadcast.segment, [broadcast.layout] = self._segments.write([broadcast.records])
        path = broadcast.segment.path if broadcast.segment else ""
        return message.metadata, small, path, broadcast.layout

    def _take(self, pipe: Connection) -> list[Message]:
        """Receive the replies to a stack, or detect that the worker has died."""
        received = None
        with contextlib.suppress(EOFError, OSError):
            received = pipe.recv()
        if received is None:  # outside the except block, so that its exception is not shown to the user
            return self._lost(pipe)
        path, results = received
        for message in self.alive[pipe].stacks.popleft():
            self._release(message)
        if path and path not in self._maps:
            self._maps[path] = Segment(path)
        mapped = self._maps[path].map if path else None
        answers = []
        for metadata, error, small, layout in results:
            content = None if error else RecordDict({**small, **read(mapped, layout)})
            answers.append(make_message(metadata, content, error))
        return answers

    def _lost(self, pipe: Connection) -> list[Message]:
        """Return error replies for a dead worker; for all remaining messages if it was the last.

        Raises
        ------
        RunError
            If every worker would fail in the same way.
        """
        worker = self.alive.pop(pipe)
        worker.process.join()
        pipe.close()
        code = worker.process.exitcode
        if code == UNGUARDED:
            raise RunError(
                f"{WHY}: call simulate() under if __name__ == '__main__', or set workers = 1",
                key="workers",
            )
        lost = list(itertools.chain(*worker.stacks))
        if not self.alive:
            lost += self._queue
            self._queue.clear()
        for message in lost:
            self._release(message)
        reason = f"its worker process ended with exit code {code}{why(code)}"
        return [Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message) for message in lost]

    def _release(self, message: Message) -> None:
        """Free a segment with its last message."""
        broadcast = self._broadcast[_key(message)]
        broadcast.messages -= 1
        if not broadcast.messages:
            if broadcast.segment:
                self._segments.free.append(broadcast.segment)
            del self._broadcast[_key(message)]


def take(queue: deque[Message], count: int) -> list[Message]:
    """Take up to ``count`` messages from the queue."""
    return [queue.popleft() for _ in range(min(count, len(queue)))]


def _key(message: Message) -> int:
    """Identify a message's arrays, which messages to many sites share, see `federation.broadcast.Broadcast`."""
    return id(next(iter(records_in(message.content, ArrayRecord).values()), None))
