"""FMGDA (On the Convergence of Federated Deep AUC Maximization, submitted to ICLR 2023, Algorithm 1).

Momentum gradient descent ascent, with recursive momentum at the clients.
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
    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class Fmgda(RecursiveDescentAscent):
    """Local descent ascent along gradient estimates that correct themselves from step to step.

    Client k, in iterations t = 0, 1, ...; u, v = gx, gy at the start, on B samples::

        1  x_prev, y_prev ← x, y
        2  x ← x - ĉ η_t u;  y ← P(y + c η_t v)
        3  every q iterations: x, y, u, v ← mean_k x_k, mean_k y_k, mean_k u_k, mean_k v_k
        4  draw a mini-batch; u ← gx(x, y) + (1 - α_t) (u - gx(x_prev, y_prev))
        5                     v ← gy(x, y) + (1 - β_t) (v - gy(x_prev, y_prev))

    Line 3 is the server's, so a round begins with lines 4 and 5, from the averages to the point that the site itself
    stepped from, and ends with line 2. η_t, α_t, β_t: see `RecursiveMomentum`. With α = β = 1, B one mini-batch and the
    constant schedule it is Local SGDA.

    Client state: x_prev, y_prev; see `own_point` for where they are lost.
    """

    name = "fmgda"
    info = AlgorithmInfo(papers=(papers.FMGDA,), where="Alg. 1", gradients="2q")
    stacks = True

    lr: float = step_size("ĉ: step size of x; times η_t")
    lr_dual: float = step_size("c: step size of y; times η_t")
    fresh_weight: float = Field(0.1, gt=0, le=1, description="α: weight of the fresh gradient in u, constant schedule")
    fresh_weight_dual: float = Field(0.1, gt=0, le=1, description="β: that in v")
    schedule_c: float = Field(1.0, gt=0, description="c1 of a schedule: α_t = c1 η_t², at most 1")
    schedule_c_dual: float = Field(1.0, gt=0, description="c2 of a schedule: β_t = c2 η_t², at most 1")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 4, 5, 1 and 2, q times. Line 3 is the base's average."""
        x, y, oracle, descent = sent["x"], sent["y"], self.clipped(oracle), self.descent(context)
        previous = own_point(memory, sent, context)
        estimators = (sent["u"], sent["v"]) if "u" in sent else None  # none in the first round
        for step in range(context.local_steps):
            if estimators is None:
                estimators = u, v = initial_estimate(oracle, (x, y), self.initial_batch, context)
            else:  # l.4-5, the end of the iteration before
                estimators = u, v = corrected(oracle, (x, y), previous, estimators, self.weights(context, step - 1))
            lr, lr_dual = self.steps(context, step)
            previous = x, y  # l.1
            x, y = x.sub(descent.direction(x, u), alpha=lr), oracle.project(y.add(v, alpha=lr_dual))  # l.2
        x_prev, y_prev = previous
        return {"x": x, "y": y, "u": u, "v": v}, remembered(context, x_prev=x_prev, y_prev=y_prev)
