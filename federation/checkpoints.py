"""Where a run can go on from: what its coordinator keeps after a round, and what the sites must keep with it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edelweiss.problems import Arrays


@dataclass(frozen=True)
class Snapshot:
    """All that `Rounds` keeps after a round.

    Attributes
    ----------
    round : int
        The last one that was played.
    tensors : Arrays
        By part and name: ``"state/x"``, ``"buffers/buffers"``, ``"residual/train/u"``, ``"output/x"``.
    facts : dict
        What is no tensor, as JSON has it.
    """

    round: int
    tensors: Arrays
    facts: dict[str, Any] = field(default_factory=dict)


class Checkpoints:
    """Who keeps a run's snapshots. This one keeps none: the run can be played once.

    Attributes
    ----------
    key : str
        What sites call the run, 32 random hexadecimal digits: Flower's own number is another one after a resume.
    last : Snapshot, optional
        What the run goes on from; None: it begins.
    """

    def __init__(self, key: str = "") -> None:
        self.key = key or secrets.token_hex(16)
        self.last: Snapshot | None = None

    def settled(self, server_round: int) -> int:
        """Return the round behind whose end the run never goes back, once sites are asked in ``server_round``.

        0 is the start. A site keeps what it remembered then, and what it takes to answer the same message again.
        """
        return server_round - 1

    def standing(self, server_round: int) -> dict[str, object]:
        """Return what tells a site which of its memories a message is about."""
        return {"run": self.key, "settled": self.settled(server_round)}

    def reached(self, snapshot: Snapshot) -> None:
        """Take note of what the run keeps after a round, and store it if that is due."""
