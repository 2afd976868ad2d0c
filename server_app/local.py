"""The local engine: a Flower Grid that calls the ClientApp directly, in this process or in worker processes.

Sites' memories are in files (`server_app.site_states`), so that any worker can serve any site.
"""

from __future__ import annotations

import gc
import itertools
import math
import multiprocessing
import os
import shutil
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from edelweiss.client_app.app import call_together
from edelweiss.client_app.process_cache import forget_all
from edelweiss.common import Registry, latest, record_in, records_in
from edelweiss.common.cores import cores
from edelweiss.common.scratch import Scratch
from edelweiss.models import resolve_device
from edelweiss.problems import PROBLEMS
from edelweiss.server_app.pool import Pool, take
from edelweiss.server_app.site_states import ROOM, States, state_dir

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from flwr.supercore.run import Run

    from edelweiss.config import RunConfig

# Seconds, measured on a server core; a factor of two is accurate enough for `processes_pay`.
START = {"fork": 0.1, "spawn": 4.0}  # until all workers have started
HAND_OVER = 2e-3  # overhead of a message to another process and back
MESSAGE = 1e-3  # a site's work per message, besides its steps
STEP = {False: 6e-5, True: 7e-4}  # a gradient in closed form, or of the smallest network
RATE = 2e9  # larger networks: parameters times samples per second


def processes_pay(config: RunConfig, d: int, workers: int, method: str) -> bool:
    """Whether this many worker processes are likely to finish a run sooner than this process alone.

    They are if the estimated time that they save exceeds their start. The decision is deterministic, and results are
    the same with any number.

    Parameters
    ----------
    config : RunConfig
        Of the run.
    d : int
        Parameters.
    workers : int
        Processes, 2 or more.
    method : str
        How they start: "fork" or "spawn".
    """
    saved = expected_seconds(config, d, 1) - expected_seconds(config, d, workers)
    return saved > START[method]


def expected_seconds(config: RunConfig, d: int, workers: int) -> float:
    """Estimate the seconds that a run's sites take in this many processes; see `processes_pay`."""
    strategy = config.strategy
    step = STEP[PROBLEMS[config.problem].needs_data] + d * config.batch_size / RATE
    site = MESSAGE + strategy.local_steps * step
    each = site if workers == 1 else (site + HAND_OVER) / workers
    return config.rounds * config.sites * strategy.fraction * each


class LocalGrid(Grid):
    """K simulated sites on this machine, as a context manager.

    Parameters
    ----------
    config : RunConfig
        ``sites`` and ``workers``. 0: one worker per core, at most one per site; a single one on a GPU, or if more do
        not pay (see `processes_pay`). 1: this process.
    run_id : int
        A number that no other run on this machine has.
    fork : bool
        Whether workers may be forked, which is fast and shares data; not if this process has threads.

    Attributes
    ----------
    stack : int
        Most clients trained together (vectorised); set once the problem is known.
    states : States
        The sites' memories.
    """

    def __init__(self, config: RunConfig, run_id: int, *, fork: bool = True) -> None:
        self.config, self.run_id = config, run_id
        on_gpu = resolve_device(config.device).startswith("cuda")
        self.workers = min(config.workers or (1 if on_gpu else cores()), config.sites)
        # A forked worker shares the data sets with this process, but hangs after CUDA or OpenMP threads have started;
        # then workers are spawned and load their own.
        threaded = torch.cuda.is_available() or torch.get_num_threads() > 1
        fork = fork and "fork" in multiprocessing.get_all_start_methods() and not threaded
        self._method = "fork" if fork else "spawn"
        self.stack = 1
        self._identifiers = itertools.count(1)
        self._queue: deque[Message] = deque()  # to be answered in this process
        self._pool: Pool | None = None

    def __enter__(self) -> LocalGrid:
        """Create the run's folder; workers start with the first message that needs them."""
        forget_renamed(Registry.changes)
        given = state_dir(self.config)
        free = shutil.disk_usage("/dev/shm").free if os.access("/dev/shm", os.W_OK | os.X_OK) else 0
        in_memory = free > ROOM
        self.scratch = Scratch("/dev/shm" if in_memory else None)
        self.states = States(self.config, given, self.scratch, in_memory=in_memory)
        sites, run_config = self.config.sites, self.config.flat()
        self._asked: set[str] = set()  # sites, in this round
        self._trainings = 0
        self.contexts = [
            Context(
                run_id=self.run_id,
                node_id=site + 1,
                node_config={"partition-id": site, "num-partitions": sites, "state-dir": str(self.states.folder)},
                state=RecordDict(),
                run_config=run_config,
            )
            for site in range(sites)
        ]
        # Flower's messages carry it; set in every process that Flower starts.
        if getattr(TaskIdentity, "_run_id", None) is None:
            TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = self.run_id, 1, 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers and remove the folder, except a stopped run's ``state-dir``."""
        if self._pool:
            self._pool.close(patience=5 if error is None else 0.5)
        gc.unfreeze()
        self.scratch.remove()
        self.states.remove()

    # ------------------------------------------------------------------ what sites remember

    def hold(self, size: int) -> int:
        """Choose where to keep memories of this many bytes, see `States.hold`."""
        before = str(self.states.folder)
        held = self.states.hold(size)
        for context in self.contexts:
            if context.node_config["state-dir"] == before:
                context.node_config = {**context.node_config, "state-dir": str(self.states.folder)}
        return held

    def store(self, run: str, server_round: int, file: Path) -> list[int] | None:
        """Write all sites' memories after a round into one file, see `States.store`."""
        self._give_up()  # late workers serve the next round or are dropped
        return self.states.store(run, server_round, file)

    def restore(self, run: str, file: Path, expected: list[int] | None) -> None:
        """Restore the memories that `store` wrote, see `States.restore`."""
        if expected:
            self.hold(expected[0])
        self.states.restore(run, file, expected)

    def prune(self, run: str, server_round: int) -> None:
        """Delete the memories of this round's sites from before it, see `States.prune`."""
        self.states.prune(run, server_round, self._asked)
        self._asked.clear()

    # ------------------------------------------------------------------ Flower's Grid

    def set_run(self, run: Run) -> None:
        """Do nothing; a local grid belongs to one run."""

    @property
    def run(self) -> Run:
        """Not known here: there is no SuperLink."""
        raise AttributeError("the local engine has no Flower run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message (Flower keeps this for old apps)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the addresses of the sites, 1 to K."""
        return range(1, self.config.sites + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages and return their identifiers; a new push gives up on earlier unanswered messages."""
        self._give_up()
        messages = list(messages)
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self._identifiers))  # as Flower's own grids set it
        trains = bool(messages) and messages[0].metadata.message_type != "query"
        if trains:
            self._trainings += 1
            if self._trainings == 2:  # all modules are loaded: exclude them from garbage collection
                gc.freeze()
            configs = [record_in(message.content, "config", ConfigRecord) for message in messages]
            self._asked |= {str(record.get("name", "")) for record in configs}
        if trains and not self._pool and self.workers > 1:
            self._pool = self._started(messages[0])
        if trains and self._pool:
            self._pool.push(messages)
        else:
            self._queue.extend(messages)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return available replies, waiting up to a second for the first.

        Without workers the sites compute now, one stack per call, so that each reply can be aggregated before the next.
        """
        if self._queue:
            messages = take(self._queue, self.stack)
            return call_together(messages, [self.contexts[message.metadata.dst_node_id - 1] for message in messages])
        return self._pool.pull(timeout=1.0) if self._pool else []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and return all replies."""
        missing = set(self.push_messages(messages))
        answers: list[Message] = []
        while missing:
            for answer in self.pull_messages(missing):
                missing.discard(answer.metadata.reply_to_message_id)
                answers.append(answer)
        return answers

    def _give_up(self) -> None:
        self._queue.clear()
        if self._pool:
            self._pool.give_up()

    # ------------------------------------------------------------------ workers

    def _started(self, message: Message) -> Pool | None:
        """Return the pool of workers, if the run has one; decided by the first training message."""
        arrays = [array for record in records_in(message.content, ArrayRecord).values() for array in record.values()]
        d = max((math.prod(array.shape) for array in arrays), default=0)
        if not (self.config.workers or processes_pay(self.config, d, self.workers, self._method)):
            self.workers = 1
            return None
        return Pool(self.workers, self._method, str(self.scratch.path), self.contexts, self.stack)


@latest
def forget_renamed(changes: int) -> None:
    """Clear caches by name after names have been redefined."""
    forget_all()


def unused_run_id() -> int:
    """Return a number for a run outside Flower."""
    return int.from_bytes(os.urandom(6), "big")
