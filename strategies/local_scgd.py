"""Local-SCGD and Local-SCGDM (Gao, Li & Huang, ICML 2022): local stochastic compositional gradient descent.

PMLR 162:7017-7035
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import LATER, AlgorithmInfo, FederatedStrategy, Oracle, Table, both, kept, step_size
from edelweiss.problems import papers
from edelweiss.problems.capabilities import InnerFunction
from edelweiss.strategies.momentum import momentum

if TYPE_CHECKING:
    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class LocalSCGD(FederatedStrategy):
    """For f(g(x)) with an inner function of fixed size, whose value each client follows by a moving average s.

    Client k, from the x it was sent::

        1  repeat q times:
        2      draw a mini-batch (η, ξ); s ← (1-β) s + β g(x; η)   (the first: s ← g(x; η))
        3      x ← x - α ∇g(x; η)ᵀ ∇f(s; ξ)

    Server::

        4  x ← mean_k x_k

    Client state: s. Lost, it starts anew from g(x; η). It does not follow x to the average nor through rounds that the
    client misses: it catches up by β per step.
    """

    name = "local-scgd"
    info = AlgorithmInfo(papers=(papers.SCGD,), gradients="q")
    messages = Table(both(x="d"), kept(s="i", of="its estimate of the inner function"))
    solves = frozenset({"conditional"})
    needs = frozenset({InnerFunction})

    lr: float = step_size("α: local step size")
    beta: float = Field(0.1, gt=0, le=1, description="β: weight of a fresh inner value in s")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-3. Line 4 is the base's average."""
        x, s = sent["x"].clone(), memory.get("s")
        lr = self.lr * context.rate
        for _ in range(context.local_steps):  # l.1
            batch = oracle.draw()
            s = momentum(s, oracle.inner(x, batch), self.beta)  # l.2
            x.add_(oracle.compositional_gradient(x, s, batch), alpha=-lr)  # l.3
        assert s is not None, "q is at least 1"
        return {"x": x}, {"s": s}


@dataclass(frozen=True, kw_only=True)
class LocalSCGDM(LocalSCGD):
    """Local-SCGD along a moving average u of the gradients; u and s are averaged over the sites like x.

    Client k, from the x, u and s it was sent::

        1  repeat q times:
        2      draw a mini-batch (η, ξ); s ← (1-β) s + β g(x; η)   (the first of the run: s ← g(x; η))
        3      u ← (1-μ) u + μ ∇g(x; η)ᵀ ∇f(s; ξ)   (the first of the run: u ← that gradient)
        4      x ← x - α u

    Server::

        5  x, u, s ← mean_k x_k, mean_k u_k, mean_k s_k

    Stages divide α; u and s go on. Clients remember nothing.
    """

    name = "local-scgdm"
    info = AlgorithmInfo(papers=(papers.SCGD,), gradients="q")
    messages = Table(
        both(x="d"),
        both(LATER, u="d", estimate=True, of="a running estimate of the gradient"),
        both(LATER, s="i", of="a running estimate of the inner function"),
    )

    mu: float = Field(0.1, gt=0, le=1, description="μ: weight of a fresh gradient in u")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-4. Line 5 is the base's average."""
        x, u, s = sent["x"].clone(), sent.get("u"), sent.get("s")
        lr = self.lr * context.rate
        for _ in range(context.local_steps):  # l.1
            batch = oracle.draw()
            s = momentum(s, oracle.inner(x, batch), self.beta)  # l.2
            u = momentum(u, oracle.compositional_gradient(x, s, batch), self.mu)  # l.3
            x.add_(u, alpha=-lr)  # l.4
        assert u is not None, "q is at least 1"
        assert s is not None
        return {"x": x, "u": u, "s": s}, {}
