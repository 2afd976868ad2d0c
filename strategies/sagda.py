"""SAGDA (Yang, Liu, Zhang & Liu, NeurIPS 2022, Algorithm 1; arXiv:2210.00611)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from edelweiss.federation import COUNT, AlgorithmInfo, Oracle, Table, average, down, kept, step_size, up
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import GradientSteps
from edelweiss.strategies.variate_versions import ROUND, of_this_round

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class Sagda(GradientSteps):
    """Local descent ascent with control variates that are taken anew, at one point, in each round.

    Client k, phase "control", from x, y::

        1  draw a mini-batch; ux_k, uy_k ← gx, gy at (x, y)

    Server::

        2  vx, vy ← mean_k ux_k, mean_k uy_k

    Client k, phase "train", from x, y, vx, vy::

        3  repeat q times:
        4      draw a mini-batch; take gx, gy at (x, y)
        5      x ← x - ηx (gx - ux_k + vx)
        6      y ← P(y + ηy (gy - uy_k + vy))

    Server::

        7  x ← x + ηg (mean_k x_k - x);  y ← y + ηg (mean_k y_k - y)

    Both phases of a round go to the same sites, as all phases do; the paper draws clients for each. Without control
    variates it is FSGDA, with ηg = 1 also Local SGDA.

    Client state: ux_k, uy_k, and the round that they are from. A site that has lost them, or that missed line 1 and has
    those of an earlier round, takes no correction in this round, as in FSGDA: zero in their place would add vx, vy to
    its own gradients. The next round takes them anew.
    """

    name = "sagda"
    info = AlgorithmInfo(papers=(papers.SAGDA,), where="Alg. 1", gradients="q + 1")
    messages = Table(
        down(x="d", y="p"),
        up(vx="d", vy="p", phase="control", estimate=True, of="both gradients of a batch at the common point"),
        kept(ux="d", uy="p", phase="control", of="control variates, within a round", round=COUNT),
        down(vx="d", vy="p", phase="train", estimate=True),
        up(x="d", y="p", phase="train"),
    )
    solves = frozenset({"minimax"})
    stacks = True

    lr: float = step_size("ηx: local step size of x")
    lr_dual: float = step_size("ηy: local step size of y")
    server_lr: float = Field(1.0, gt=0, description="ηg: step size of the server")
    control_batch: int = Field(
        0, ge=0, description="samples of a control variate; 0 = batch-size, a mini-batch as any other"
    )

    @property
    def phases(self) -> tuple[str, ...]:
        """The gradients at the global point, and the local steps."""
        return ("control", "train")

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send x, y; for the steps vx, vy as well."""
        return state if context.phase == "train" else {"x": state["x"], "y": state["y"]}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Line 1, or lines 3-6."""
        oracle, descent = self.clipped(oracle), self.descent(context)
        if context.phase == "control":
            ux, uy = oracle.gradient(sent["x"], sent["y"], oracle.draw(self.control_batch or None))  # l.1
            return {"vx": ux, "vy": uy}, {"ux": ux, "uy": uy, ROUND: torch.tensor([context.round])}
        x, y = sent["x"].clone(), sent["y"].clone()
        lr, lr_dual = self.lr * context.rate, self.lr_dual * context.rate
        own = of_this_round(memory, context) or {"ux": sent["vx"], "uy": sent["vy"]}
        correct_x, correct_y = sent["vx"] - own["ux"], sent["vy"] - own["uy"]  # constant during a round
        for _ in range(context.local_steps):  # l.3
            gx, gy = oracle.gradient(x, y)  # l.4
            x.sub_(descent.direction(x, gx.add_(correct_x)), alpha=lr)  # l.5
            y = oracle.project(y + lr_dual * (gy + correct_y))  # l.6
        return {"x": x, "y": y}, {}  # the next round takes them anew

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Line 2, or line 7."""
        mean = average(replies)
        if context.phase == "control":
            return state | mean  # l.2
        return {name: torch.lerp(state[name], mean[name], self.server_lr) for name in ("x", "y")}  # l.7
