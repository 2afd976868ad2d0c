"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1; arXiv:1602.05629), also known as Local SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from federation import Card, Oracle
from keys import hyper
from problems import papers
from strategies.local_steps import LocalSteps

if TYPE_CHECKING:
    from federation import Turn
    from problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalSteps):
    """Local SGD and averaging: the baseline for plain minimisation.

    Client k, from the x it was sent::

        1  repeat q times:
        2      draw a mini-batch; x ← x - η gx

    Server::

        3  x ← mean_k x_k

    The step size may fall, and line 2 have weight decay and momentum, see `LocalSteps`.
    """

    name = "fedavg"
    card = Card(
        papers=(papers.FEDAVG,),
        where="Alg. 1",
        down="d",
        up="d",
        gradients="q",
        sends="the model x",
    )
    solves = frozenset({"minimisation"})

    lr: float = hyper(0.1, "η: local step size", above=0.0)

    def local_update(self, sent: Arrays, memory: Arrays, oracle: Oracle, turn: Turn) -> tuple[Arrays, Arrays]:
        """Lines 1-2. Line 3 is the base's average."""
        x, descent = sent["x"].clone(), self.descent(turn)
        for _ in range(turn.local_steps):  # l.1
            gx, _ = oracle.gradient(x)
            descent.move(x, gx, self.lr)  # l.2
        return {"x": x}, {}
