"""Every site by itself: the baseline that federated learning has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edelweiss.federation import AlgorithmInfo, Oracle, Table, down, kept, step_size
from edelweiss.strategies.local_steps import LocalSteps, existing

if TYPE_CHECKING:
    from collections.abc import Callable

    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class Alone(LocalSteps):
    """Local SGD, or SGDA where there is a y, without any exchange.

    Client k, from its own (x, y), at first those of the common start::

        1  repeat q times:
        2      draw a mini-batch; take gx, gy at (x, y)
        3      x ← x - ηx gx
        4      y ← P(y + ηy gy)

    Step sizes may fall, and line 3 have weight decay and momentum, see `LocalSteps`.

    Client state: x, y. Nothing goes up. What comes down is the common start, in every round, because the server cannot
    know which site is new or has lost its memory; such a site starts there, all others ignore it. With one site this is
    `FedAvg`, or `LocalSGDA`. On ``saddle`` each site ends at a saddle
    point of its own, which may be farther from that of all than the start is.
    """

    name = "alone"
    info = AlgorithmInfo(gradients="q")
    messages = Table(down(x="d", y="p"), kept(x="d", y="p", of="a model of its own, its y"))
    solves = frozenset({"minimisation", "minimax"})
    stacks = True
    personalised = True
    own_dual = True
    exchanges = False

    lr: float = step_size("ηx: step size of x")
    lr_dual: float = step_size("ηy: step size of y, where there is one")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-4."""
        own, oracle, descent = memory or sent, self.clipped(oracle), self.descent(context)
        x, y = own["x"].clone(), own.get("y")
        for _ in range(context.local_steps):  # l.1
            y = descent.step(x, y, oracle, self.lr, self.lr_dual)  # l.2-4
        return {}, existing(x=x, y=y)

    def personal(self, sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
        """Return the site's own model; the start before it has one."""
        return memory or sent
