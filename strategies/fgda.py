"""FGDA (Huang et al., 2024): recursive momentum, and a step from the averages at each synchronisation.

arXiv:2211.07303
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Oracle, step_size
from edelweiss.problems import papers
from edelweiss.strategies.recursive_momentum import (
    RecursiveDescentAscent,
    corrected,
    initial_estimate,
    own_point,
    remembered,
)

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class Fgda(RecursiveDescentAscent):
    """FMGDA whose clients take the first step of a round together.

    Client k, in iterations t = 0, 1, ...; u, v = gx, gy at the start, on B samples (u is the paper's w)::

        1  x_prev, y_prev ← x, y
        2  every q iterations, except at t = 0: x, y, u, v ← mean_k x_k, mean_k y_k, mean_k u_k, mean_k v_k
        3  x ← x - γ η_t u;  y ← P(y + λ η_t v)
        4  draw a mini-batch; u ← gx(x, y) + (1 - β_t) (u - gx(x_prev, y_prev))
        5                     v ← gy(x, y) + (1 - α_t) (v - gy(x_prev, y_prev))

    Line 2 is the server's, so a round is lines 1 and 3-5, q times. The averages are what the step starts from, and not
    the point before it: the paper never assigns them to x_k, y_k, and its Lemma 8 needs the error that is carried
    along, the mean over k of u_k - ∇x f_k(x_k, y_k). From the averages in its place the estimators would lose, at each
    synchronisation, what the sites' gradients differ by between their own points and the common one; with very
    different sites no α, β would lower the error that this leaves.

    (Printed inside the paper's ``else``, lines 4 and 5 would be left out at a synchronisation; Lemma 8 takes them for
    every t.) At t = 0 each client steps along its own first estimate. η_t, α_t, β_t: see `RecursiveMomentum`; that α is
    the weight of y and β that of x is this paper's. With one site it is FMGDA.

    Client state: the point that it sent; see `own_point` for where it is lost.
    """

    name = "fgda"
    info = AlgorithmInfo(papers=(papers.ADAFGDA,), where="Alg. 1", gradients="2q")
    stacks = True

    lr: float = step_size("γ: step size of x; times η_t")
    lr_dual: float = step_size("λ: step size of y; times η_t")
    fresh_weight: float = Field(0.1, gt=0, le=1, description="β: weight of the fresh gradient in u, constant schedule")
    fresh_weight_dual: float = Field(0.1, gt=0, le=1, description="α: that in v")
    schedule_c: float = Field(1.0, gt=0, description="c2 of a schedule: β_t = c2 η_t², at most 1")
    schedule_c_dual: float = Field(1.0, gt=0, description="c1 of a schedule: α_t = c1 η_t², at most 1")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1 and 3-5, q times. Line 2 is the base's average."""
        x, y = sent["x"], sent["y"]
        previous = own_point(memory, sent, context)  # l.1 before l.2
        oracle, descent = self.clipped(oracle), self.descent(context)
        u, v = self.first(sent, memory, oracle, context) if context.round == 1 else (sent["u"], sent["v"])
        A, B = self.matrices(sent)
        for step in range(context.local_steps):
            lr, lr_dual = self.steps(context, step)
            here = x, y
            x = x.addcdiv(descent.direction(x, u), A, value=-lr)  # l.3
            y = oracle.project(y.addcdiv(v, B, value=lr_dual))
            u, v = corrected(
                oracle, (x, y), previous if step == 0 else here, (u, v), self.weights(context, step)
            )  # l.4-5
        return {"x": x, "y": y, "u": u, "v": v}, remembered(context, x_prev=x, y_prev=y)

    def first(self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext) -> tuple[Tensor, Tensor]:
        """Return the estimators (u, v) that the run starts with."""
        return initial_estimate(oracle, (sent["x"], sent["y"]), self.initial_batch, context)

    def matrices(self, sent: Arrays) -> tuple[Tensor, Tensor]:
        """Return the diagonals of A and B, which divide the steps; here 1."""
        return sent["x"].new_ones(()), sent["y"].new_ones(())
