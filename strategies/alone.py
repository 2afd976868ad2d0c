"""Every site by itself: the baseline that federated learning has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from federation import Card, FederatedStrategy, Oracle
from keys import hyper
from strategies.local_steps import existing, step

if TYPE_CHECKING:
    from federation import Turn
    from problems import Arrays


@dataclass(frozen=True, kw_only=True)
class Alone(FederatedStrategy):
    """Local SGD, or SGDA where there is a y, without any exchange.

    Client k, from its own (x, y), at first those of the common start::

        1  repeat q times:
        2      draw a mini-batch; take gx, gy at (x, y)
        3      x ← x - ηx gx
        4      y ← P(y + ηy gy)

    Client state: x, y. Nothing goes up. What comes down is the common start, in every round, because the server cannot
    know which site is new or has lost its memory; such a site starts there, all others ignore it. With one site this is
    `FedAvg`, or `LocalSGDA`.
    """

    name = "alone"
    card = Card(
        down="d + p",
        up="0",
        gradients="q",
        sends="nothing; x and y stay",
        remembers="its x, y",
    )
    solves = frozenset({"minimisation", "minimax"})
    personalised = True
    exchanges = False

    lr: float = hyper(0.1, "ηx: step size of x", above=0.0)
    lr_dual: float = hyper(0.1, "ηy: step size of y, where there is one", above=0.0)

    def local_update(self, sent: Arrays, memory: Arrays, oracle: Oracle, turn: Turn) -> tuple[Arrays, Arrays]:
        """Lines 1-4."""
        own = self.personal(sent, memory, {})
        x, y = own["x"].clone(), own.get("y")
        lr, lr_dual = self.lr * turn.rate, self.lr_dual * turn.rate
        for _ in range(turn.local_steps):  # l.1
            y = step(x, y, oracle, lr, lr_dual)  # l.2-4
        return {}, existing(x=x, y=y)

    def personal(self, sent: Arrays, memory: Arrays, fresh: Arrays) -> Arrays:
        """Return the site's own model; the start before it has one."""
        return memory or sent
