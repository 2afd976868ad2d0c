"""FedAdam and FedYogi (Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar & McMahan, ICLR 2021, Algorithm 2).

arXiv:2003.00295
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Oracle, Table, average, down, step_size, up
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import LocalSteps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedOpt(LocalSteps):
    """Local SGD, and a server for which the mean way of the clients is a gradient that it takes an adaptive step with.

    Client k, from the x it was sent::

        1  w ← x
        2  repeat q times:
        3      draw a mini-batch; w ← w - ηl gw
        4  Δ_k ← w - x

    Server::

        5  Δ ← mean_k Δ_k
        6  m ← β1 m + (1 - β1) Δ
        7  v ← `second_moment` of v and Δ²
        8  x ← x + η m / (√v + τ)

    with m = 0 and v = τ² at first, and no correction of the bias that this leaves in the first rounds, as in the paper.
    The step of a coordinate is about η, whatever ηl and q are. ηl may fall from round to round or stage to stage, and
    line 3 have weight decay and momentum, see `LocalSteps`; η, m and v go on as they are.
    """

    messages = Table(down(x="d"), up(step="d", of="the way that its model went"))
    solves = frozenset({"minimisation"})
    stacks = True

    lr: float = step_size("ηl: local step size")
    server_lr: float = Field(0.01, gt=0, description="η: step size of the server")
    beta1: float = Field(0.9, ge=0, lt=1, description="β1: what the mean m of the ways keeps of itself")
    beta2: float = Field(0.99, ge=0, lt=1, description="β2: what the mean v of their squares keeps of itself")
    tau: float = Field(1e-3, gt=0, description="τ: how adaptive; large against √v, all coordinates take steps alike")

    @abstractmethod
    def second_moment(self, v: Tensor, squares: Tensor) -> Tensor:
        """Return the next v, given Δ², both of shape (d,); ``squares`` may be changed."""

    def initial_state(self, start: Arrays) -> Arrays:
        """Start with m = 0 and v = τ²."""
        x = start["x"]
        return start | {"m": torch.zeros_like(x), "v": torch.full_like(x, self.tau**2)}

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send x."""
        return {"x": state["x"]}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-4."""
        w, oracle, descent = sent["x"].clone(), self.clipped(oracle), self.descent(context)  # l.1
        for _ in range(context.local_steps):  # l.2
            descent.step(w, None, oracle, self.lr, 0.0)  # l.3
        return {"step": w.sub_(sent["x"])}, {}  # l.4

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Lines 5-8."""
        delta = average(replies)["step"]  # l.5
        m = torch.lerp(delta, state["m"], self.beta1)  # l.6
        v = self.second_moment(state["v"], delta.square_())  # l.7
        return dict(state) | {
            "x": torch.addcdiv(state["x"], m, v.sqrt() + self.tau, value=self.server_lr),
            "m": m,
            "v": v,
        }  # l.8


@dataclass(frozen=True, kw_only=True)
class FedAdam(FedOpt):
    """Adam's step at the server; line 7 of `FedOpt` is v ← β2 v + (1 - β2) Δ²."""

    name = "fedadam"
    info = AlgorithmInfo(papers=(papers.FEDOPT,), where="Alg. 2", gradients="q")

    def second_moment(self, v: Tensor, squares: Tensor) -> Tensor:
        """Return β2 v + (1 - β2) Δ²."""
        return torch.lerp(squares, v, self.beta2)


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedOpt):
    """Yogi's step at the server; line 7 of `FedOpt` is v ← v - (1 - β2) Δ² sign(v - Δ²).

    v changes by no more than (1 - β2) Δ², so it falls more slowly than Adam's once the ways get short.
    """

    name = "fedyogi"
    info = AlgorithmInfo(papers=(papers.FEDOPT,), where="Alg. 2", gradients="q")

    def second_moment(self, v: Tensor, squares: Tensor) -> Tensor:
        """Return v - (1 - β2) Δ² sign(v - Δ²)."""
        return v.addcmul(squares, torch.sign(v - squares), value=self.beta2 - 1)
