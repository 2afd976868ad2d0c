"""Local SGDA (Deng & Mahdavi, AISTATS 2021, Algorithm 1; arXiv:2102.13152): FedAvg for minimax problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edelweiss.federation import AlgorithmInfo, Oracle, step_size
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import GradientSteps

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class LocalSGDA(GradientSteps):
    """Local descent on x and ascent on y, both from the same point, and averaging.

    Client k, from the (x, y) it was sent::

        1  repeat q times:
        2      draw a mini-batch; take gx, gy at (x, y)
        3      x ← x - ηx gx
        4      y ← P(y + ηy gy)

    Server::

        5  x, y ← mean_k x_k, mean_k y_k
    """

    name = "local-sgda"
    info = AlgorithmInfo(papers=(papers.LOCAL_SGDA,), where="Alg. 1", gradients="q")
    solves = frozenset({"minimax"})
    stacks = True

    lr: float = step_size("ηx: local step size of x")
    lr_dual: float = step_size("ηy: local step size of y")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-4. Line 5 is the base's average."""
        x, y = sent["x"].clone(), sent["y"].clone()
        oracle, descent, lr_dual = self.clipped(oracle), self.descent(context), self.lr_dual * context.rate
        for _ in range(context.local_steps):  # l.1
            gx, gy = self.gradients(x, y, sent, oracle)  # l.2
            descent.move(x, gx, self.lr)  # l.3
            y = oracle.project(y + lr_dual * gy)  # l.4
        return {"x": x, "y": y}, {}

    def gradients(self, x: Tensor, y: Tensor, sent: Arrays, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Return gx and gy on a fresh mini-batch; the variants of this method differ in where they take them."""
        return oracle.gradient(x, y)
