"""The local engine: a Flower Grid that calls the ClientApp directly, in this process or in a few of its own.

What a site remembers is in files (`server_app.site_states`), so that any worker can serve any site.
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

# Seconds, as measured on a core of a server; they need be right to a factor of two only, see `processes_pay`.
START = {"fork": 0.1, "spawn": 4.0}  # until all workers are there; a fresh process imports everything anew
HAND_OVER = 2e-3  # what a message costs more when it goes to another process and back
MESSAGE = 1e-3  # a site's work for a message, beside its steps
STEP = {False: 6e-5, True: 7e-4}  # a gradient in closed form, or of the smallest network
RATE = 2e9  # of larger ones: parameters times samples in a second


def processes_pay(config: RunConfig, d: int, workers: int, method: str) -> bool:
    """Whether this many worker processes are likely to end a run sooner than this process alone.

    They are if the time that they save at the sites, by the parameters, samples and steps of the run, is longer than
    they take to start. That is no matter of luck: the same run has the same workers, and the same bits with any number.

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
    """Return about how long the sites of a run work in so many processes, in seconds; see `processes_pay`."""
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
        ``sites`` and ``workers``: 0 takes one per core, at most one per site, but one alone for a GPU and where more do
        not pay (see `processes_pay`); 1 works in this process.
    run_id : int
        Any number that no other run on this machine has.
    fork : bool
        Whether workers may be forks of this process, which start at once and share its data. Not where it has threads.

    Attributes
    ----------
    stack : int
        How many clients are trained side by side at most; whoever knows the problem sets it.
    states : States
        Where the sites write what they remember.
    """

    def __init__(self, config: RunConfig, run_id: int, *, fork: bool = True) -> None:
        self.config, self.run_id = config, run_id
        on_gpu = resolve_device(config.device).startswith("cuda")
        self.workers = min(config.workers or (1 if on_gpu else cores()), config.sites)
        # A forked worker shares the data sets with this process. After CUDA or OpenMP threads have started it would
        # hang, so then it is a fresh process that loads its own.
        threaded = torch.cuda.is_available() or torch.get_num_threads() > 1
        fork = fork and "fork" in multiprocessing.get_all_start_methods() and not threaded
        self._method = "fork" if fork else "spawn"
        self.stack = 1
        self._identifiers = itertools.count(1)
        self._queue: deque[Message] = deque()  # to be answered in this process
        self._pool: Pool | None = None

    def __enter__(self) -> LocalGrid:
        """Make the folder for this run; workers start with the first message that needs them."""
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
        """End the workers and remove the folder. What a run that stopped left in its ``state-dir`` stays there."""
        if self._pool:
            self._pool.close(patience=5 if error is None else 0.5)
        gc.unfreeze()
        self.scratch.remove()
        self.states.remove()

    # ------------------------------------------------------------------ what sites remember

    def hold(self, size: int) -> int:
        """Let the sites write what they remember where there is room for so many bytes, see `States.hold`."""
        before = str(self.states.folder)
        held = self.states.hold(size)
        for context in self.contexts:
            if context.node_config["state-dir"] == before:
                context.node_config = {**context.node_config, "state-dir": str(self.states.folder)}
        return held

    def store(self, run: str, server_round: int, file: Path) -> list[int] | None:
        """Write what all sites remembered after a round into one file, see `States.store`."""
        self._give_up()  # whoever is late works on the next round, or for nobody
        return self.states.store(run, server_round, file)

    def restore(self, run: str, file: Path, expected: list[int] | None) -> None:
        """Give the sites back what `store` wrote, see `States.restore`."""
        if expected:
            self.hold(expected[0])
        self.states.restore(run, file, expected)

    def prune(self, run: str, server_round: int) -> None:
        """Forget what the sites of this round remembered before it, see `States.prune`."""
        self.states.prune(run, server_round, self._asked)
        self._asked.clear()

    # ------------------------------------------------------------------ Flower's Grid

    def set_run(self, run: Run) -> None:
        """Do nothing: a local grid belongs to one run."""

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
        """Queue messages; returns their identifiers.

        A caller that pushes again has all answers, or no longer waits for those that are missing.
        """
        self._give_up()
        messages = list(messages)
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self._identifiers))  # as Flower's own grids set it
        trains = bool(messages) and messages[0].metadata.message_type != "query"
        if trains:
            self._trainings += 1
            if self._trainings == 2:  # all modules are there: the garbage collector need not look at them again
                gc.freeze()
            told = [record_in(message.content, "config", ConfigRecord) for message in messages]
            self._asked |= {str(record.get("name", "")) for record in told}
        if trains and not self._pool and self.workers > 1:
            self._pool = self._started(messages[0])
        if trains and self._pool:
            self._pool.push(messages)
        else:
            self._queue.extend(messages)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return answers that are there, waiting up to a second for the first.

        Without workers sites do their work now, so many per call as train side by side: an answer is folded into a
        mean before the next one exists.
        """
        if self._queue:
            messages = take(self._queue, self.stack)
            return call_together(messages, [self.contexts[message.metadata.dst_node_id - 1] for message in messages])
        return self._pool.pull(timeout=1.0) if self._pool else []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and return all answers."""
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
        """Return a pool of workers if the run is to have one; decided by the first training message."""
        arrays = [array for record in records_in(message.content, ArrayRecord).values() for array in record.values()]
        d = max((math.prod(array.shape) for array in arrays), default=0)
        if not (self.config.workers or processes_pay(self.config, d, self.workers, self._method)):
            self.workers = 1
            return None
        return Pool(self.workers, self._method, str(self.scratch.path), self.contexts, self.stack)


@latest
def forget_renamed(changes: int) -> None:
    """Forget what was built by name, once after names have been given another meaning."""
    forget_all()


def unused_run_id() -> int:
    """Return a number for a run outside Flower."""
    return int.from_bytes(os.urandom(6), "big")
