"""Momentum Local SGDA and Momentum Local SGDA+ (Sharma, Panda, Joshi & Varshney, ICML 2022, Algorithm 2).

arXiv:2203.04850
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import LATER, AlgorithmInfo, Oracle, Table, both
from edelweiss.problems import papers
from edelweiss.strategies.local_sgda import LocalSGDA
from edelweiss.strategies.local_sgda_plus import SNAPSHOT, LocalSGDAPlus
from edelweiss.strategies.momentum import momentum

if TYPE_CHECKING:
    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class MomentumLocalSGDA(LocalSGDA):
    """Local SGDA along moving averages of the gradients, which are averaged over the sites like x and y.

    Client k, from the (x, y, dx, dy) it was sent::

        1  in the first round of the run: draw a mini-batch; dx, dy ← gx, gy at (x, y)
        2  repeat q times:
        3      x ← x - ηx α dx
        4      y ← P(y + ηy α dy)
        5      draw a mini-batch; take gx, gy at this new (x, y)
        6      dx ← (1 - βx α) dx + βx α gx;  dy ← (1 - βy α) dy + βy α gy

    Server::

        7  x, y, dx, dy ← mean_k x_k, mean_k y_k, mean_k dx_k, mean_k dy_k

    With βx α = βy α = 1 it is Local SGDA with step sizes α ηx and α ηy, but for the first step of a round: that one
    follows the mean of the gradients that the clients took last, each at its own point before averaging. Stages divide
    ηx and ηy; α and the directions go on. Clients remember nothing.
    """

    name = "momentum-local-sgda"
    info = AlgorithmInfo(papers=(papers.MOMENTUM,), where="Alg. 2", gradients="q")
    messages = LocalSGDA.messages + Table(
        both(LATER, dx="d", dy="p", estimate=True, of="running means of both gradients")
    )
    stacks = True

    alpha: float = Field(1.0, gt=0, le=1, description="α: scales the steps and the weight of a fresh gradient")
    beta: float = Field(0.1, gt=0, description="βx: weight of a fresh gradient in dx, times α")
    beta_dual: float = Field(0.1, gt=0, description="βy: weight of a fresh gradient in dy, times α")

    def contradictions(self) -> list[str]:
        """Require weights of at most 1, and refuse two kinds of momentum at once."""
        found = super().contradictions()
        if self.momentum:
            found.append(
                f"{self.key('momentum')} = {self.momentum:g}: {self.name} has a momentum of its own, "
                f"{self.key('beta')} = {self.beta:g}, so take 0"
            )
        return found + [
            f"{self.key(name)} = {value:g}: the weight of a fresh gradient, this times {self.key('alpha')} = "
            f"{self.alpha:g}, is at most 1: set {self.key(name)} to {1 / self.alpha:g} or less"
            for name, value in (("beta", self.beta), ("beta_dual", self.beta_dual))
            if value * self.alpha > 1 + 1e-5  # 1/α as it is printed here is allowed
        ]

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-6. Line 7 is the base's average."""
        x, y, oracle, descent = sent["x"].clone(), sent["y"].clone(), self.clipped(oracle), self.descent(context)
        if "dx" in sent:
            dx, dy = sent["dx"], sent["dy"]
        else:
            dx, dy = self.gradients(x, y, sent, oracle)  # l.1
        lr, lr_dual = self.lr * context.rate * self.alpha, self.lr_dual * context.rate * self.alpha
        fresh, fresh_dual = self.beta * self.alpha, self.beta_dual * self.alpha
        for _ in range(context.local_steps):  # l.2
            x.sub_(descent.direction(x, dx), alpha=lr)  # l.3
            y = oracle.project(y + lr_dual * dy)  # l.4
            gx, gy = self.gradients(x, y, sent, oracle)  # l.5
            dx, dy = momentum(dx, gx, fresh), momentum(dy, gy, fresh_dual)  # l.6
        return {"x": x, "y": y, "dx": dx, "dy": dy}, {}


@dataclass(frozen=True, kw_only=True)
class MomentumLocalSGDAPlus(LocalSGDAPlus, MomentumLocalSGDA):
    """Momentum Local SGDA that takes every gy at (x̃, y), x̃ a snapshot of the averaged x, as Local SGDA+ does.

    All from its two parents: in lines 1 and 5 of `MomentumLocalSGDA` gy is taken as in line 2 of `LocalSGDAPlus`, which
    also says when the snapshot moves and what that means for the messages.
    """

    name = "momentum-local-sgda-plus"
    info = AlgorithmInfo(papers=(papers.MOMENTUM,), gradients="2q")
    messages = MomentumLocalSGDA.messages + SNAPSHOT
