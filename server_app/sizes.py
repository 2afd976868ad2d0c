"""What a run takes of this machine's memory, asked before its first round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from federation import RunError
from keys.memory import shortage

if TYPE_CHECKING:
    from config import RunConfig

COORDINATOR, WORKER = 3, 3  # vectors as long as x: the state, a mean, a message; a network, its gradient, an answer


def memory_of(config: RunConfig, d: int, workers: int, *, remembers_here: bool) -> int:
    """Return the bytes that a run on one machine needs at the least; a batch and what becomes of it come on top.

    Parameters
    ----------
    config : RunConfig
        Of the run.
    d : int
        Parameters.
    workers : int
        Processes that play the sites.
    remembers_here : bool
        Whether what the sites remember is kept in memory.
    """
    remembered = config.sites if remembers_here and config.strategy.card.remembers else 0
    return 4 * d * (COORDINATOR + WORKER * workers + remembered)


def require_memory(config: RunConfig, d: int, workers: int, *, remembers_here: bool) -> None:
    """Check that there is as much.

    Raises
    ------
    RunError
        When there is not.
    """
    mend = "lower workers or sites, or take a smaller model" + ", or a state-dir on a disk" * remembers_here
    what = f"the run of {config.sites} sites and {d:,} parameters, in {workers} processes,"
    if text := shortage(memory_of(config, d, workers, remembers_here=remembers_here), what, mend):
        raise RunError(text)
