"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, MLSys 2020, Algorithm 2; arXiv:1812.06127)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Oracle, step_size
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import LocalSteps

if TYPE_CHECKING:
    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedProx(LocalSteps):
    """FedAvg whose clients stay near the model that they were sent: a proximal term bounds their drift.

    Client k minimises h_k(w) = f_k(w) + μ/2 ‖w - x‖² from the x it was sent::

        1  w ← x
        2  repeat q times:
        3      draw a mini-batch; w ← w - η (gw + μ (w - x))

    Server::

        4  x ← mean_k w_k

    The step size may fall, and line 3 have weight decay and momentum, see `LocalSteps`. The paper leaves the solver of
    h_k open and lets each client stop at an accuracy γ_k of its own; here all take q steps. It draws clients with
    probabilities p_k = n_k / n and averages them alike; here `fraction` draws uniformly, and ``weighting = "examples"``
    weighs by n_k, as its published code does. With μ = 0 this is `FedAvg` to the bit.
    """

    name = "fedprox"
    info = AlgorithmInfo(papers=(papers.FEDPROX,), where="Alg. 2", gradients="q")
    solves = frozenset({"minimisation"})
    stacks = True

    lr: float = step_size("η: local step size")
    mu: float = Field(0.01, ge=0, description="μ: weight of the proximal term; the paper tries 0.001, 0.01, 0.1 and 1")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-3. Line 4 is the base's average."""
        w, oracle, descent = sent["x"].clone(), self.clipped(oracle), self.descent(context)  # l.1
        for _ in range(context.local_steps):  # l.2
            descent.step(w, None, oracle, self.lr, 0.0, pull=self.mu, towards=sent["x"])  # l.3
        return {"x": w}, {}
