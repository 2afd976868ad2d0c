"""FCSG and FCSG-M (Wu et al., NeurIPS 2023, Algorithm 1): federated conditional stochastic optimisation.

arXiv:2310.02524
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import LATER, AlgorithmInfo, FederatedStrategy, Oracle, Table, both, step_size
from edelweiss.problems import papers
from edelweiss.strategies.momentum import momentum

if TYPE_CHECKING:
    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FCSG(FederatedStrategy):
    """Local SGD on the conditional objective E_ξ f_ξ(E_η|ξ g_η(x, ξ)).

    ĝ is the gradient of mean_i f_ξi(mean_j g_ηij(x, ξi)) with b outer samples ξ (``batch-size``) and m inner ones η for
    each of them. The inner mean stands inside f, so ĝ is biased; the bias shrinks like 1/m. Both draws are the
    problem's: to the algorithm it is a gradient like any other, and the steps are those of `FedAvg`.

    Client k, from the x it was sent::

        1  repeat q times:
        2      draw ξ and η; x ← x - α ĝ   (the first of the run: ĝ on B outer samples)

    Server::

        3  x ← mean_k x_k
    """

    name = "fcsg"
    info = AlgorithmInfo(papers=(papers.FCSG,), where="Alg. 1", gradients="q")
    solves = frozenset({"conditional"})
    stacks = True

    lr: float = step_size("α: local step size")
    initial_batch: int = Field(
        0, ge=0, description="B: outer samples of the first gradient; 0: a mini-batch, as of any other"
    )

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-2. Line 3 is the base's average."""
        x, lr = sent["x"].clone(), self.lr * context.rate
        for step in range(context.local_steps):  # l.1
            first = context.round == 1 and step == 0
            g, _ = oracle.gradient(x, None, oracle.draw(self.initial_batch or None) if first else None)
            x.add_(g, alpha=-lr)  # l.2
        return {"x": x}, {}


@dataclass(frozen=True, kw_only=True)
class FCSGM(FCSG):
    """FCSG along a moving average u of the gradients, which is averaged over the sites like x.

    Client k, from the x and u it was sent::

        1  repeat q times:
        2      draw ξ and η; u ← (1-β) u + β ĝ   (the first of the run: u ← ĝ on B outer samples)
        3      x ← x - α u

    Server::

        4  x, u ← mean_k x_k, mean_k u_k

    With β = 1 it is FCSG. Stages divide α; u goes on. Clients remember nothing.
    """

    name = "fcsg-m"
    info = AlgorithmInfo(papers=(papers.FCSG,), where="Alg. 1", gradients="q")
    messages = FCSG.messages + Table(both(LATER, u="d", estimate=True, of="a running estimate of the gradient"))
    stacks = True

    beta: float = Field(0.1, gt=0, le=1, description="β: weight of a fresh gradient in u")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-3. Line 4 is the base's average."""
        x, u, lr = sent["x"].clone(), sent.get("u"), self.lr * context.rate
        for _ in range(context.local_steps):  # l.1
            g, _ = oracle.gradient(x, None, oracle.draw(self.initial_batch or None) if u is None else None)
            u = momentum(u, g, self.beta)  # l.2
            x.add_(u, alpha=-lr)  # l.3
        assert u is not None, "q is at least 1"
        return {"x": x, "u": u}, {}
