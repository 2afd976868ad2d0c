"""Estimates of a run's memory on this machine, and the choice of its stack, before the first round."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edelweiss.client_app.vectorised import why_alone
from edelweiss.common.cores import cores
from edelweiss.common.memory import free_memory, return_freed_memory, shortage
from edelweiss.federation import RunError
from edelweiss.federation.run_messages import RunMessages
from edelweiss.models.stack import Stack
from edelweiss.problems.network import NetworkProblem
from edelweiss.problems.stacked import relative_time, trial_failure
from edelweiss.server_app.console import volume
from edelweiss.server_app.local import expected_seconds

if TYPE_CHECKING:
    from edelweiss.config import RunConfig
    from edelweiss.problems import Arrays, Problem
    from edelweiss.server_app.console import Progress
    from edelweiss.server_app.local import LocalGrid
    from edelweiss.server_app.run_state import RunState

COORDINATOR, WORKER = 3, 3  # vectors as long as x: state, mean, message; network, gradient, reply
STACKED = 8  # vectors as long as x per client of a stack: iterate, message, memory, gradients, reply
FEWEST = 8  # least clients for which a stack pays
MOST = {"cpu": 128, "cuda": 512}  # most clients in a stack; more save little
NUMBERS = 2**26  # most entries of x in a stack
BETWEEN = {"cpu": 2**22, "cuda": 2**28}  # most activations between two layers of a stack, limited by caches
MANY, LONG = 64, 10.0  # least clients in a round, and seconds of a run, for advice on stacking
PAYS = 0.8  # a stack must take at most this share of the time per gradient


def make_ready(grid: LocalGrid, problem: Problem, d: int, states: int, state: RunState) -> None:
    """Choose stack and place of memories (``states`` bytes) for a run on this machine; a resumed run keeps its stack.

    Raises
    ------
    RunError
        If memory is insufficient.
    """
    config, progress = grid.config, state.recorder.progress
    stack = state.stack or stack_of(config, problem, d, progress)
    held = grid.hold(states)
    fits = require_memory(config, d, grid.workers, stack, held)
    if fits < stack:
        progress.say(f"stack = 0: {fits} clients together, limited by memory, instead of {stack}")
    grid.stack = fits if config.stack or state.stack else worth_it(config, problem, fits, progress)
    state.stack = grid.stack
    if text := advice(config, problem, d, expected_seconds(config, d, grid.workers)):
        progress.say(text)
    if held < states and not config.state_dir:
        progress.say(f"the sites' memories, {volume(states)}, are kept in {grid.states.folder.parent}")


def remembered(config: RunConfig, problem: Problem, start: Arrays) -> int:
    """Estimate the bytes of all sites' memories between two rounds."""
    if not config.remembers:
        return 0
    algorithm, encoding = config.strategy, config.encoding
    messages = RunMessages(algorithm, start, config.rounds, config.sites, problem)
    each = sum(vector.bytes for vector in messages.between_rounds().values())
    each += 4 * len(start["x"]) * len(encoding.coarse)  # what rounding took away
    asked = algorithm.clients_per_round(config.sites)
    # If the run can be resumed, the sites of a round also keep their previous memory.
    return each * (min(config.sites, asked * config.rounds) + (asked if config.checkpoint_every else 0))


def memory_of(d: int, workers: int, stack: int, states: int) -> int:
    """Return the least bytes of a run on one machine, without batches and activations.

    Parameters
    ----------
    d : int
        Parameters.
    workers : int
        Processes that simulate the sites.
    stack : int
        Clients that each trains together.
    states : int
        Bytes of the sites' memories that are kept in RAM.
    """
    stacked = STACKED * stack if stack > 1 else 0
    return 4 * d * (COORDINATOR + (WORKER + stacked) * workers) + states


def require_memory(config: RunConfig, d: int, workers: int, stack: int, states: int) -> int:
    """Check the available memory; return the stack, reduced if the run leaves its size open.

    Raises
    ------
    RunError
        If memory is insufficient.
    """
    mend = "lower workers or sites, or take a smaller model" + (", or a lower state-memory" if states else "")
    what = f"the run of {config.sites} sites and {d:,} parameters, in {workers} processes,"
    need = memory_of(d, workers, 1, states)
    if text := shortage(need, what, mend):
        raise RunError(text, key="workers", value=need)
    fits = max(1, (free_memory() - need) // (4 * d * STACKED * workers))
    if not config.stack:
        return min(stack, fits)
    need = memory_of(d, workers, stack, states)
    if text := shortage(need, f"stack = {stack} of {d:,} parameters, in {workers} processes,", f"take stack = {fits}"):
        raise RunError(text, key="stack", value=stack, allowed=fits)
    return stack


def stack_of(config: RunConfig, problem: Problem, d: int, progress: Progress) -> int:
    """Return how many clients may train together; log if it is 1 against the run-config's request.

    The stacks suffice for all cores of this process regardless of the number of workers, which therefore does not
    change the results.
    """
    if config.stack == 1:
        return 1
    if text := why_alone(config.strategy, problem) or trial_failure(problem):
        progress.say(f"stack = {config.stack}: clients are trained sequentially, because {text}")
        return 1
    if config.stack:
        return min(config.stack, config.strategy.clients_per_round(config.sites))
    return _as_many_as_pay(config, problem, d)


def advice(config: RunConfig, problem: Problem, d: int, seconds: float) -> str:
    """Advise to train clients together if that is likely to pay, without a trial; otherwise empty.

    Parameters
    ----------
    config, problem
        Of the run.
    d : int
        Parameters.
    seconds : float
        Estimated duration.
    """
    many = config.strategy.clients_per_round(config.sites) >= MANY and seconds >= LONG
    if config.stack != 1 or not many or why_alone(config.strategy, problem):
        return ""
    stack = _as_many_as_pay(config, problem, d)
    if stack == 1:
        return ""
    return (
        f"clients train sequentially (stack = 1): stack = 0 would try {stack} of them together, which is faster for "
        "small networks (docs/results/clients.md); the last bits differ"
    )


def _as_many_as_pay(config: RunConfig, problem: Problem, d: int) -> int:
    """Return how many clients ``stack = 0`` trains together."""
    clients = config.strategy.clients_per_round(config.sites)
    parts = 1 if problem.device.type == "cuda" else max(2, cores())
    fair = max(FEWEST, math.ceil(clients / parts))
    most = min(clients, fair, MOST[problem.device.type], _with_few_numbers(config, problem, d))
    return most if most >= min(FEWEST, clients) else 1


def worth_it(config: RunConfig, problem: Problem, stack: int, progress: Progress) -> int:
    """Time a stack, and return it if it is faster; otherwise 1, which is logged."""
    if stack == 1:
        return 1
    try:
        share = relative_time(problem, stack, config.batch_size)
    except RuntimeError:  # a GPU without memory for it
        share = math.inf
    return_freed_memory()
    if share <= PAYS:
        return stack
    progress.say(
        f"stack = 0: clients are trained sequentially: {stack} together take {share:.2f} of the time per gradient"
    )
    return 1


def _with_few_numbers(config: RunConfig, problem: Problem, d: int) -> int:
    """Return the number of clients whose vectors and activations are small enough for a stack to pay."""
    between = 1
    if isinstance(problem, NetworkProblem):
        between = config.batch_size * Stack(problem.network).largest_activation(problem.setting.data_summary.shape)
    return min(NUMBERS // d, BETWEEN[problem.device.type] // between)
