"""What a run takes of this machine's memory, asked before its first round."""

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

COORDINATOR, WORKER = 3, 3  # vectors as long as x: the state, a mean, a message; a network, its gradient, an answer
STACKED = 8  # the same for each client of a stack: its point, what it is sent and remembers, gradients, an answer
FEWEST = 8  # but for fewer clients than this a stack does not pay
MOST = {"cpu": 128, "cuda": 512}  # clients in a stack: with more of them a step costs each hardly less
NUMBERS = 2**26  # of x in a stack
BETWEEN = {"cpu": 2**22, "cuda": 2**28}  # numbers between two layers of a stack: a processor's caches hold no more
MANY, LONG = 64, 10.0  # clients in a round, and seconds of a run: with fewer nobody need hear that a stack may pay
PAYS = 0.8  # of the time for a gradient: who saves less trains one by one, also where the clock was a little off


def make_ready(grid: LocalGrid, problem: Problem, d: int, states: int, state: RunState) -> None:
    """Decide how a run on this machine uses it; its sites remember so many bytes. One that goes on keeps its stacks.

    Raises
    ------
    RunError
        When there is too little.
    """
    config, progress = grid.config, state.report.progress
    stack = state.stack or stack_of(config, problem, d, progress)
    held = grid.hold(states)
    fits = require_memory(config, d, grid.workers, stack, held)
    if fits < stack:
        progress.say(f"stack = 0: {fits} clients side by side, for which there is memory, and not {stack}")
    grid.stack = fits if config.stack or state.stack else worth_it(config, problem, fits, progress)
    state.stack = grid.stack
    if text := advice(config, problem, d, expected_seconds(config, d, grid.workers)):
        progress.say(text)
    if held < states and not config.state_dir:
        progress.say(f"what the sites remember, {volume(states)}, is kept in {grid.states.folder.parent}")


def remembered(config: RunConfig, problem: Problem, start: Arrays) -> int:
    """Return about how many bytes all sites that ever take part in a run remember between two rounds."""
    if not config.remembers:
        return 0
    algorithm, encoding = config.strategy, config.encoding
    messages = RunMessages(algorithm, start, config.rounds, config.sites, problem)
    each = sum(vector.bytes for vector in messages.between_rounds().values())
    each += 4 * len(start["x"]) * len(encoding.coarse)  # what rounding took away
    asked = algorithm.asked(config.sites)
    # Where a run can go on, the sites of a round have what they remembered before it, too.
    return each * (min(config.sites, asked * config.rounds) + (asked if config.checkpoint_every else 0))


def memory_of(d: int, workers: int, stack: int, states: int) -> int:
    """Return the bytes that a run on one machine needs at the least; a batch and what becomes of it come on top.

    Parameters
    ----------
    d : int
        Parameters.
    workers : int
        Processes that play the sites.
    stack : int
        Clients that each of them trains side by side.
    states : int
        Bytes of what the sites remember, so far as it is kept in memory.
    """
    stacked = STACKED * stack if stack > 1 else 0
    return 4 * d * (COORDINATOR + (WORKER + stacked) * workers) + states


def require_memory(config: RunConfig, d: int, workers: int, stack: int, states: int) -> int:
    """Check that there is as much; return the stack: a smaller one where it is this run's to choose.

    Raises
    ------
    RunError
        When there is not.
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
    """Return how many clients may train side by side; said where it is one in spite of what the run-config asks for.

    There are enough stacks for all cores that this process may use, however many workers the run has: so it has the
    same stacks with any number of them, and the same bits.
    """
    if config.stack == 1:
        return 1
    if text := why_alone(config.strategy, problem) or trial_failure(problem):
        progress.say(f"stack = {config.stack}: clients are trained one after the other, because {text}")
        return 1
    if config.stack:
        return min(config.stack, config.strategy.asked(config.sites))
    return _as_many_as_pay(config, problem, d)


def advice(config: RunConfig, problem: Problem, d: int, seconds: float) -> str:
    """Say that clients could train side by side, where that is likely to pay; nothing is tried. Empty elsewhere.

    Parameters
    ----------
    config, problem
        Of the run.
    d : int
        Parameters.
    seconds : float
        About what it will take.
    """
    many = config.strategy.asked(config.sites) >= MANY and seconds >= LONG
    if config.stack != 1 or not many or why_alone(config.strategy, problem):
        return ""
    stack = _as_many_as_pay(config, problem, d)
    if stack == 1:
        return ""
    return (
        f"clients train one after the other (stack = 1): stack = 0 would try {stack} of them side by side, which is "
        "faster for small networks (docs/results/clients.md); their last bits differ"
    )


def _as_many_as_pay(config: RunConfig, problem: Problem, d: int) -> int:
    """Return how many clients ``stack = 0`` lets train side by side."""
    clients = config.strategy.asked(config.sites)
    parts = 1 if problem.device.type == "cuda" else max(2, cores())
    fair = max(FEWEST, math.ceil(clients / parts))
    most = min(clients, fair, MOST[problem.device.type], _with_few_numbers(config, problem, d))
    return most if most >= min(FEWEST, clients) else 1


def worth_it(config: RunConfig, problem: Problem, stack: int, progress: Progress) -> int:
    """Return a stack if it saves time, which is tried; else 1, and say so."""
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
        f"stack = 0: clients are trained one after the other: {stack} side by side take {share:.2f} of the time for a "
        "gradient"
    )
    return 1


def _with_few_numbers(config: RunConfig, problem: Problem, d: int) -> int:
    """Return of how many clients the vectors, and what is between two layers, have so few numbers that it pays."""
    between = 1
    if isinstance(problem, NetworkProblem):
        between = config.batch_size * Stack(problem.network).largest_activation(problem.setting.data_summary.shape)
    return min(NUMBERS // d, BETWEEN[problem.device.type] // between)
