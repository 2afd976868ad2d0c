"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1; arXiv:1602.05629), also known as Local SGD.

With Adam's steps (arXiv:1412.6980) on request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Oracle, step_size
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import LocalSteps

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalSteps):
    """Local SGD and averaging: the baseline for plain minimisation.

    Client k, from the x it was sent::

        1  repeat q times:
        2      draw a mini-batch; x ← x - η gx, or with ``adam`` x ← x - η m̂ / (√v̂ + ε)

    Server::

        3  x ← mean_k x_k

    The step size may fall, and line 2 have weight decay and momentum, see `LocalSteps`.

    m̂ and v̂ are `Adam`'s means of gx and gx², which begin anew in every round: a client has no state, and there is
    nothing to average but x. With one site and all steps in one round this is Adam on its own, as in the first stage of
    the two-stage method (CODASCA section 6.2). Weight decay is then added to Adam's direction (AdamW; Loshchilov &
    Hutter, arXiv:1711.05101), and momentum refused: Adam has its own. The paper has the plain step.
    """

    name = "fedavg"
    info = AlgorithmInfo(papers=(papers.FEDAVG, papers.ADAM), where="Alg. 1", gradients="q")
    solves = frozenset({"minimisation"})
    stacks = True

    lr: float = step_size("η: local step size; with adam rather 0.001")
    optimiser: Literal["sgd", "adam"] = Field(
        "sgd", description="what x moves against: gx, or Adam's direction, anew in each round"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="β1 of adam: what m keeps of itself")
    beta2: float = Field(0.999, ge=0, lt=1, description="β2 of adam: what v keeps of itself")
    eps: float = Field(1e-8, gt=0, description="ε of adam")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-2. Line 3 is the base's average."""
        x, oracle, descent = sent["x"].clone(), self.clipped(oracle), self.descent(context)
        adam = Adam(x, self.beta1, self.beta2, self.eps) if self.optimiser == "adam" else None
        for _ in range(context.local_steps):  # l.1
            gx, _ = oracle.gradient(x)
            descent.move(x, adam.direction(gx) if adam else gx, self.lr)  # l.2
        return {"x": x}, {}

    def contradictions(self) -> list[str]:
        """Refuse two kinds of momentum at once."""
        found = super().contradictions()
        if self.optimiser == "adam" and self.momentum:
            found.append(
                f"{self.key('momentum')} = {self.momentum:g}: adam has a momentum of its own, "
                f"{self.key('beta1')} = {self.beta1:g}, so take 0"
            )
        return found


class Adam:
    """Adam's direction (Kingma & Ba, ICLR 2015, Algorithm 1): means of a gradient and of its squares, zero at first.

    Parameters
    ----------
    x : Tensor
        What the gradients are of, shape (d,): it gives shape, dtype and device, and is not changed.
    beta1, beta2 : float
        β1 and β2 in [0, 1): what m and v keep of themselves.
    eps : float
        ε > 0, added to the root of v.
    """

    def __init__(self, x: Tensor, beta1: float, beta2: float, eps: float) -> None:
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.m, self.v, self.t = torch.zeros_like(x), torch.zeros_like(x), 0

    def direction(self, g: Tensor) -> Tensor:
        """Return m̂ / (√v̂ + ε) after the gradient g, shape (d,): what x moves against, times the step size.

        m ← β1 m + (1 - β1) g and v ← β2 v + (1 - β2) g²; m̂ and v̂ are they over 1 - β1^t and 1 - β2^t, which makes up
        for the zeros of the start.
        """
        self.t += 1
        self.m.lerp_(g, 1 - self.beta1)
        self.v.lerp_(g.square(), 1 - self.beta2)
        m, v = self.m / (1 - self.beta1**self.t), self.v / (1 - self.beta2**self.t)
        return m.div_(v.sqrt_().add_(self.eps))
