"""Checkpoints of a run: the coordinator's state after a round, and the memory that sites must keep with it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edelweiss.problems import Arrays


@dataclass(frozen=True)
class Snapshot:
    """The state of `Rounds` after a round."""

    round: int  # the last completed round
    tensors: Arrays  # by part and name: "state/x", "buffers/buffers", "residual/train/u", "output/x"
    facts: dict[str, Any] = field(default_factory=dict)  # everything else, as JSON


class Checkpoints:
    """The store of a run's snapshots; this base class stores none.

    Attributes
    ----------
    key : str
        The run's key at the sites, 32 random hexadecimal digits; Flower's run id changes with a resume.
    last : Snapshot, optional
        The snapshot to resume from; None: start from the beginning.
    """

    def __init__(self, key: str = "") -> None:
        self.key = key or secrets.token_hex(16)
        self.last: Snapshot | None = None

    def committed(self, server_round: int) -> int:
        """Return the latest round whose state is safe once ``server_round`` begins: a resume starts no earlier.

        0 is the start. Sites keep their memory after that round, and what they need to repeat a reply.
        """
        return server_round - 1

    def memory_fields(self, server_round: int) -> dict[str, object]:
        """Return the message fields by which a site finds its memory."""
        return {"run": self.key, "committed": self.committed(server_round)}

    def save_if_due(self, snapshot: Snapshot) -> None:
        """Receive the snapshot of a round, and store it if due."""
