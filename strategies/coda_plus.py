"""CODA+ (Yuan, Guo, Xu, Ying & Yang, ICML 2021, Algorithms 1 and 2; arXiv:2102.04635)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from edelweiss.federation import (
    ALL_SITES,
    COUNT,
    IN_STAGE,
    AlgorithmInfo,
    Mean,
    Oracle,
    Table,
    When,
    down,
    given,
    kept,
    step_size,
    up,
)
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import GradientSteps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


POINT = When(
    "before the end of a stage (with `fraction` below 1 in every round)",
    lambda algorithm, context: algorithm.fraction < 1 or not context.ends_stage,
)
MEANS = When(
    "at the end of a stage (with `fraction` below 1 in every round)",
    lambda algorithm, context: algorithm.fraction < 1 or context.ends_stage,
)


@dataclass(frozen=True, kw_only=True)
class CodaPlus(GradientSteps):
    """Stage-wise proximal Local SGDA; a stage's output is the average of all its iterates.

    Client k, in a stage with reference point x_ref::

        1  repeat q_s times:
        2      draw a mini-batch; take gx, gy at (x, y)
        3      x ← x - η_s (gx + γ (x - x_ref))
        4      y ← P(y + η_s gy)
        5      keep the running average (x̃, ỹ) of the iterates of this stage

    Server::

        6  x, y ← mean_k x_k, mean_k y_k
        7  at the end of a stage: x, y ← means of x̃_k, ỹ_k, weighted by iterations;  x_ref ← x

    With partial participation (x̃, ỹ) is of one round and sent in each, for a site may miss the end of a stage; the
    server averages over the rounds, so that it is the mean over all k and t that took place.

    Client state: x̃, ỹ and their count; none with partial participation. Lost, the average starts anew from there.
    """

    name = "coda-plus"
    info = AlgorithmInfo(papers=(papers.CODASCA,), where="Alg. 1 and 2", gradients="q")
    messages = Table(
        down(x="d", y="p"),
        down(given("gamma"), IN_STAGE, x_ref="d"),
        up(POINT, x="d", y="p"),
        up(MEANS, x_mean="d", y_mean="p", count=COUNT, use="in the clear", of="means of its iterates"),
        kept(ALL_SITES, x_mean="d", y_mean="p", count=COUNT, stage=COUNT, of="the mean of its iterates in this stage"),
    )
    solves = frozenset({"minimax"})
    stacks = True
    averages_stages = True

    lr: float = step_size("η_1: local step size of x and y in the first stage")
    gamma: float = Field(
        0.002,
        ge=0,
        description="γ: weight of the proximal term, of the loss as it is trained; the paper's 1/γ = 500 is 0.002",
    )

    def initial_state(self, start: Arrays) -> Arrays:
        """Start with x_ref at the initial point."""
        return start | {"x_ref": start["x"]}

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send x, y and, unless it is x itself, x_ref."""
        names = ("x", "y") if context.starts_stage or not self.gamma else ("x", "y", "x_ref")
        return {name: state[name] for name in names}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-5."""
        x, y = sent["x"].clone(), sent["y"].clone()
        x_ref = sent.get("x_ref", sent["x"])
        lr, oracle, descent = self.lr * context.rate, self.clipped(oracle), self.descent(context)
        x_mean, y_mean, count = torch.zeros_like(x), torch.zeros_like(y), 0
        if memory and memory["stage"].item() == context.stage:
            x_mean, y_mean, count = memory["x_mean"].clone(), memory["y_mean"].clone(), int(memory["count"])
        for _ in range(context.local_steps):  # l.1
            gx, gy = oracle.gradient(x, y)  # l.2
            if self.gamma:
                gx.add_(x, alpha=self.gamma).sub_(x_ref, alpha=self.gamma)
            x.sub_(descent.direction(x, gx), alpha=lr)  # l.3
            y = oracle.project(y + lr * gy)  # l.4
            count += 1
            x_mean.lerp_(x, 1 / count)  # l.5
            y_mean.lerp_(y, 1 / count)
        means = {"x_mean": x_mean, "y_mean": y_mean, "count": torch.tensor([count])}
        if self.fraction < 1:
            return {"x": x, "y": y} | means, {}
        return means if context.ends_stage else {"x": x, "y": y}, means | {"stage": torch.tensor([context.stage])}

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Line 6 or, in the last round of a stage, line 7."""
        ends, means = Mean(), Mean()
        if "weight" in state and not context.starts_stage:  # of earlier rounds, with partial participation
            means.add({name: state[name] for name in ("x_mean", "y_mean")}, state["weight"].item())
        for reply in replies:
            arrays = dict(reply.arrays)
            if "count" in arrays:
                iterations = int(arrays.pop("count"))
                part = {name: arrays.pop(name) for name in ("x_mean", "y_mean")}
                means.add(part, reply.site.weight * iterations)
            if arrays:
                ends.add(arrays, reply.site.weight)
        weight = torch.tensor([means.total], dtype=torch.float64)
        new = state | ends.value() | means.value()  # l.6
        if context.ends_stage:
            new |= {"x": new["x_mean"], "y": new["y_mean"], "x_ref": new["x_mean"]}  # l.7
        return new | {"weight": weight} if self.fraction < 1 else new
