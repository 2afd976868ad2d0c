"""Acc-FCSG-M (Wu et al., NeurIPS 2023, Algorithm 2; arXiv:2310.02524): FCSG with recursive momentum at the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import COUNT, LATER, AlgorithmInfo, Oracle, Table, both, kept, step_size
from edelweiss.problems import papers
from edelweiss.strategies.recursive_momentum import (
    RecursiveMomentum,
    corrected,
    initial_estimate,
    own_point,
    remembered,
)

if TYPE_CHECKING:
    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class AccFCSGM(RecursiveMomentum):
    """Local descent along an estimate of the conditional gradient that corrects itself from step to step.

    ĝ is that of `FCSG`. Client k, in iterations t = 0, 1, ...; u = ĝ at the start, on B outer samples::

        1  x_prev ← x
        2  x ← x - α η_t u
        3  every q iterations: x, u ← mean_k x_k, mean_k u_k
        4  draw ξ and η; u ← ĝ(x) + (1 - β_t) (u - ĝ(x_prev)), both on these samples

    Line 3 is the server's, and as in `Fmgda` a round begins with line 4, from the averages to the point that the site
    itself stepped from, and ends with line 2. η_t, β_t: see `RecursiveMomentum`; with the constant schedule they are 1
    and β. With β = 1 as well, and B one mini-batch, it is FCSG.

    Client state: x_prev; see `own_point` for where it is lost. The paper lets all sites take part in every round.
    """

    name = "acc-fcsg-m"
    info = AlgorithmInfo(papers=(papers.FCSG,), where="Alg. 2", gradients="2q")
    messages = Table(
        both(x="d"),
        both(LATER, u="d", estimate=True, of="a running estimate of the gradient"),
        kept(x_prev="d", round=COUNT, of="the point of its last estimate"),
    )
    solves = frozenset({"conditional"})
    stacks = True
    partial = False

    lr: float = step_size("α: step size; times η_t")
    beta: float = Field(0.5, gt=0, le=1, description="β: weight of the fresh gradient in u, constant schedule")
    schedule_c: float = Field(1.0, gt=0, description="c of a schedule: β_t = c η_t², at most 1")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 4, 1 and 2, q times. Line 3 is the base's average."""
        x, u = sent["x"], sent.get("u")  # no u in the first round
        x_prev, _ = own_point(memory, sent, context)
        for step in range(context.local_steps):
            if u is None:
                u, _ = initial_estimate(oracle, (x, None), self.initial_batch, context)
            else:  # l.4, the end of the iteration before
                weight = self.weight(self.beta, self.schedule_c, self.eta(context, step - 1))
                u, _ = corrected(oracle, (x, None), (x_prev, None), (u, None), (weight, 1.0))
            x_prev = x  # l.1
            x = x.sub(u, alpha=self.lr * self.eta(context, step) * context.rate)  # l.2
        assert u is not None, "q is at least 1"
        return {"x": x, "u": u}, remembered(context, x_prev=x_prev)
