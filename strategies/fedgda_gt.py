"""FedGDA-GT (Sun & Wei, NeurIPS 2022, Algorithm 2; arXiv:2206.01132): descent ascent with gradient tracking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from edelweiss.federation import COUNT, AlgorithmInfo, Mean, Oracle, Table, down, kept, step_size, up
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import GradientSteps
from edelweiss.strategies.variate_versions import ROUND, of_this_round

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedGdaGt(GradientSteps):
    """Local descent ascent with full gradients, each corrected by what the site's differs from the mean at one point.

    Client k, phase "anchor", from x_0, y_0::

        1  ux_k, uy_k ← gx, gy at (x_0, y_0), over all of its training samples

    Server::

        2  vx, vy ← mean_k ux_k, mean_k uy_k

    Client k, phase "train", from vx, vy; x, y = x_0, y_0::

        3  repeat q times:
        4      take gx, gy at (x, y), over all of its training samples
        5      x ← x - ηx (gx - ux_k + vx)
        6      y ← P(y + ηy (gy - uy_k + vy))

    Server::

        7  x, y ← mean_k x_k, mean_k y_k

    In the first step gx is ux_k and gy is uy_k: it is taken without them. The paper has one η and steps on y and x
    alike. A gradient here is a pass over all of a site's samples; `Sagda` with ηg = 1 is the same with mini-batches.

    Client state: x_0, y_0, ux_k, uy_k, and their round, from the first phase to the second. A site that has lost them,
    or has those of an earlier round, sits out the rest of the round: its reply is empty, and line 7 is over the others.
    """

    name = "fedgda-gt"
    info = AlgorithmInfo(papers=(papers.FEDGDA_GT,), where="Alg. 2", gradients="q")
    messages = Table(
        down(x="d", y="p", phase="anchor"),
        up(vx="d", vy="p", phase="anchor", estimate=True, of="both gradients of all its samples at the common point"),
        kept(x="d", y="p", ux="d", uy="p", phase="anchor", of="the common point and its gradients", round=COUNT),
        down(vx="d", vy="p", phase="train", estimate=True),
        up(x="d", y="p", phase="train", lost={}),
    )
    solves = frozenset({"minimax"})

    lr: float = step_size("ηx: local step size of x")
    lr_dual: float = step_size("ηy: local step size of y")

    @property
    def phases(self) -> tuple[str, ...]:
        """The gradients at the global point, and the local steps."""
        return ("anchor", "train")

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send x, y; for the steps vx, vy alone, because the site has x, y."""
        names = ("x", "y") if context.phase == "anchor" else ("vx", "vy")
        return {name: state[name] for name in names}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Line 1, or lines 3-6."""
        oracle, descent = self.clipped(oracle), self.descent(context)
        if context.phase == "anchor":
            ux, uy = oracle.full_gradient(sent["x"], sent["y"])  # l.1
            anchor = {"x": sent["x"], "y": sent["y"], "ux": ux, "uy": uy, ROUND: torch.tensor([context.round])}
            return {"vx": ux, "vy": uy}, anchor
        if not (memory := of_this_round(memory, context)):
            return {}, {}
        lr, lr_dual = self.lr * context.rate, self.lr_dual * context.rate
        x = memory["x"].sub(descent.direction(memory["x"], sent["vx"]), alpha=lr)  # the first step
        y = oracle.project(memory["y"] + lr_dual * sent["vy"])
        correct_x, correct_y = sent["vx"] - memory["ux"], sent["vy"] - memory["uy"]  # constant during a round
        for _ in range(context.local_steps - 1):  # l.3
            gx, gy = oracle.full_gradient(x, y)  # l.4
            x.sub_(descent.direction(x, gx.add_(correct_x)), alpha=lr)  # l.5
            y = oracle.project(y + lr_dual * (gy + correct_y))  # l.6
        return {"x": x, "y": y}, {}

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Line 2, or line 7 over the sites that took steps; if none did, x and y stay."""
        mean = Mean()
        for reply in replies:
            if reply.arrays:
                mean.add(reply.arrays, reply.site.weight)
        return {"x": state["x"], "y": state["y"]} | mean.value()  # l.2, l.7
