"""CODASCA (Yuan, Guo, Xu, Ying & Yang, ICML 2021, Algorithms 3 and 4; arXiv:2102.04635)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field

from edelweiss.common import Stream
from edelweiss.federation import (
    COUNT,
    IN_STAGE,
    AlgorithmInfo,
    Mean,
    Oracle,
    Table,
    both,
    down,
    given,
    kept,
    step_size,
)
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import GradientSteps
from edelweiss.strategies.variate_versions import ROUND, SINCE, VERSIONS, VariateVersions, origin, still_valid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class Codasca(GradientSteps):
    """CODA+ with control variates, which correct each site's drift when the sites' data differ.

    Client k, in a stage with reference point x_ref, from x, y, cx, cy::

        1  repeat q_s times:
        2      draw a mini-batch; take gx, gy at (x, y)
        3      x ← x - ηl (gx + γ (x - x_ref) - ckx + cx)
        4      y ← P(y + ηl (gy - cky + cy))
        5  ckx ← ckx - cx + (x_sent - x) / (q ηl);  cky ← cky - cy + (y - y_sent) / (q ηl)

    Server::

        6  cx, cy ← mean_k ckx, mean_k cky
           (with partial participation: c ← c + 1/K Σ over participants of the change of ck)
        7  x ← x + ηg (mean_k x_k - x);  y ← y + ηg (mean_k y_k - y)
        8  at the end of a stage: x, y ← the stage's ``output``
        9  at the start of a stage: x_ref ← x; cx, cy, ckx, cky ← 0

    With ``momentum`` the q of line 5 is, for x, Σ_t (1 - μ^t) / (1 - μ) over the steps: ckx stays a mean of gradients.

    Algorithm 4 returns a round of the stage that is drawn uniformly, which is ``output = "random"``; "average" is the
    mean over its rounds, and "last", the default here, its last one: Figure 1 has the scores of the last iteration.

    Theorem 2 lets I_s grow as the local step size falls, both by one factor g from stage to stage, with the same number
    of rounds in each: ``stage-decay = stage-growth = stage-steps-growth = g``. The experiments keep I and set
    ``stage-decay = 3`` alone.

    Client state: ckx, cky, and the round that they are from. Lost, they are zero, as at the start of a stage. With all
    sites in every round c heals at once; with partial participation `VariateVersions` notices, and all start anew::

        10  if some client's ck is not the one that is in c: cx, cy, ckx, cky ← 0 in the next round
    """

    name = "codasca"
    info = AlgorithmInfo(papers=(papers.CODASCA,), where="Alg. 3 and 4", gradients="q")
    messages = Table(
        both(x="d", y="p"),
        both(IN_STAGE, cx="d", cy="p", estimate=True, of="control variates: mean gradients, or their change"),
        down(given("gamma"), IN_STAGE, x_ref="d"),
        kept(ckx="d", cky="p", of="control variates", round=COUNT),
        VERSIONS,
    )
    solves = frozenset({"minimax"})
    stacks = True
    stages_output = True

    lr: float = step_size("ηl: local step size of x and y in the first stage")
    server_lr: float = Field(1.0, gt=0, description="ηg: step size of the server")
    gamma: float = Field(
        0.002,
        ge=0,
        description="γ: weight of the proximal term, of the loss as it is trained; the paper's 1/γ = 500 is 0.002",
    )

    def initial_state(self, start: Arrays) -> Arrays:
        """Start with x_ref at the initial point and no correction."""
        zeros = {"cx": torch.zeros_like(start["x"]), "cy": torch.zeros_like(start["y"])}
        return start | zeros | {"x_ref": start["x"]}

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send x, y and, past the first round of a stage, cx, cy (until then zero) and x_ref (until then x)."""
        if context.starts_stage:
            return {"x": state["x"], "y": state["y"]}
        names = ("x", "y", "cx", "cy", "x_ref", SINCE) if self.gamma else ("x", "y", "cx", "cy", SINCE)
        return {name: state[name] for name in names if name in state}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-5."""
        x_sent, y_sent = sent["x"], sent["y"]
        x, y = x_sent.clone(), y_sent.clone()
        zero_x, zero_y = torch.zeros_like(x), torch.zeros_like(y)
        x_ref, cx, cy = sent.get("x_ref", x_sent), sent.get("cx", zero_x), sent.get("cy", zero_y)
        memory = still_valid(memory, sent, context)
        ckx, cky = memory.get("ckx", zero_x), memory.get("cky", zero_y)
        lr, oracle, descent = self.lr * context.rate, self.clipped(oracle), self.descent(context)
        correct_x, correct_y = cx - ckx, cy - cky  # constant during a round
        for _ in range(context.local_steps):  # l.1
            gx, gy = oracle.gradient(x, y)  # l.2
            gx.add_(correct_x)
            if self.gamma:
                gx.add_(x, alpha=self.gamma).sub_(x_ref, alpha=self.gamma)
            x.sub_(descent.direction(x, gx), alpha=lr)  # l.3
            y = oracle.project(y + lr * (gy + correct_y))  # l.4
        tiny = torch.finfo(x.dtype).tiny  # after very many stages: 0 / 0
        path, path_dual = max(descent.reach(context.local_steps) * lr, tiny), max(context.local_steps * lr, tiny)
        new_ckx, new_cky = (x_sent - x) / path - correct_x, (y - y_sent) / path_dual - correct_y  # l.5
        remembered = {"ckx": new_ckx, "cky": new_cky, ROUND: torch.tensor([context.round])}
        if self.fraction == 1:
            return {"x": x, "y": y, "cx": new_ckx, "cy": new_cky}, remembered
        return {"x": x, "y": y, "cx": new_ckx - ckx, "cy": new_cky - cky} | origin(memory), remembered

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Lines 6-10."""
        zeros = {"cx": torch.zeros_like(state["cx"]), "cy": torch.zeros_like(state["cy"])}
        new = dict(state) | (zeros | {"x_ref": state["x"]} if context.starts_stage else {})  # l.9
        versions, mean_k = VariateVersions(state, context), Mean()
        for reply in replies:
            mean_k.add(versions.count(reply), reply.site.weight)
        mean = mean_k.value()
        if self.fraction < 1:  # l.6
            share = mean_k.total / context.total_weight  # of those whose answers are here, not of those who were asked
            mean["cx"].mul_(share).add_(new["cx"])
            mean["cy"].mul_(share).add_(new["cy"])
        for name in ("x", "y"):  # l.7
            new[name] = torch.lerp(state[name], mean[name], self.server_lr)
        new |= {"cx": mean["cx"], "cy": mean["cy"]} if versions.consistent else zeros  # l.10
        return self.stage_output(state, versions.saved(new), context)  # l.8

    def stage_output(self, state: Arrays, new: Arrays, context: RoundContext) -> Arrays:
        """Line 8: note what ``output`` asks for; at the end of the stage it is what the next one, or the run, gets."""
        if self.output == "last":
            return new
        # A later round replaces the one drawn so far with probability 1/r: uniform, however long the stage is.
        seed = [self.seed, Stream.STAGE_OUTPUT, context.stage, context.round_in_stage]
        drawn = self.output == "random" and np.random.default_rng(seed).integers(context.round_in_stage) == 0
        for name in ("x", "y"):
            noted = f"{name}_output"
            if context.starts_stage or drawn:
                new[noted] = new[name]
            elif self.output == "average":
                new[noted] = torch.lerp(state[noted], new[name], 1 / context.round_in_stage)
            if context.ends_stage:
                new[name] = new[noted]
        return new
