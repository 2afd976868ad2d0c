"""What a run takes of this machine's memory, asked before its first round."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from client_app.together import why_alone
from federation import RunError
from keys.memory import free_memory, shortage
from problems.stacked import tried

if TYPE_CHECKING:
    from config import RunConfig
    from problems import Problem
    from server_app.console import Progress

COORDINATOR, WORKER = 3, 3  # vectors as long as x: the state, a mean, a message; a network, its gradient, an answer
STACKED = 8  # the same for each client of a stack: its point, what it is sent and remembers, gradients, an answer
PARTS = 4  # a round's clients make so many stacks at least, so that all workers have one
FEWEST = 8  # but for fewer clients than this a stack does not pay
MOST = {"cpu": 128, "cuda": 512}  # clients in a stack: with more of them a step costs each hardly less
NUMBERS = 2**26  # of x in a stack


def memory_of(config: RunConfig, d: int, workers: int, stack: int, *, remembers_here: bool) -> int:
    """Return the bytes that a run on one machine needs at the least; a batch and what becomes of it come on top.

    Parameters
    ----------
    config : RunConfig
        Of the run.
    d : int
        Parameters.
    workers : int
        Processes that play the sites.
    stack : int
        Clients that each of them trains side by side.
    remembers_here : bool
        Whether what the sites remember is kept in memory.
    """
    remembered = config.sites if remembers_here and config.remembers else 0
    stacked = STACKED * stack if stack > 1 else 0
    return 4 * d * (COORDINATOR + (WORKER + stacked) * workers + remembered)


def require_memory(config: RunConfig, d: int, workers: int, stack: int, *, remembers_here: bool) -> None:
    """Check that there is as much.

    Raises
    ------
    RunError
        When there is not.
    """
    mend = "lower workers or sites, or take a smaller model" + ", or a state-dir on a disk" * remembers_here
    what = f"the run of {config.sites} sites and {d:,} parameters, in {workers} processes,"
    need = memory_of(config, d, workers, 1, remembers_here=remembers_here)
    if text := shortage(need, what, mend):
        raise RunError(text)
    fits = max(1, (free_memory() - need) // (4 * d * STACKED * workers))
    need = memory_of(config, d, workers, stack, remembers_here=remembers_here)
    if text := shortage(need, f"stack = {stack} of {d:,} parameters, in {workers} processes,", f"take stack = {fits}"):
        raise RunError(text)


def stack_of(config: RunConfig, problem: Problem, d: int, progress: Progress) -> int:
    """Return how many clients train side by side; said where it is one in spite of what the run-config asks for.

    The same run has the same stacks, whatever the number of workers, and so the same bits.
    """
    if config.stack == 1:
        return 1
    if text := why_alone(config.strategy, problem) or tried(problem):
        progress.say(f"stack = {config.stack}: clients are trained one after the other, because {text}")
        return 1
    clients = config.strategy.asked(config.sites)
    on_gpu = problem.device.type == "cuda"
    most = min(MOST[problem.device.type], NUMBERS // d, max(FEWEST, math.ceil(clients / (1 if on_gpu else PARTS))))
    return min(config.stack or (most if most >= FEWEST else 1), clients)
