"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich & Suresh, ICML 2020, Algorithm 1; arXiv:1910.06378)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from edelweiss.federation import COUNT, IN_STAGE, AlgorithmInfo, Mean, Oracle, Table, both, kept, step_size
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import LocalSteps
from edelweiss.strategies.variate_versions import ROUND, SINCE, VERSIONS, VariateVersions, origin, still_valid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class Scaffold(LocalSteps):
    """FedAvg with control variates, which correct each client's drift when the sites' data differ.

    Client k, from the x, c it was sent and its own c_k::

        1  w ← x
        2  repeat q times:
        3      draw a mini-batch; w ← w - ηl (gw - c_k + c)
        4  c_k ← c_k - c + (x - w) / (q ηl)

    Server::

        5  x ← x + ηg (mean_k w_k - x)
        6  c ← mean_k c_k
           (with partial participation: c ← c + 1/K Σ over participants of the change of c_k)

    Line 4 is the paper's option II, the mean of the gradients of the round, with which its experiments are made. Option
    I, c_k ← the gradient at x over the site's data, costs a pass over them in each round; `FedGdaGt` does that.

    The step size may fall, and line 3 have weight decay and momentum, see `LocalSteps`. With momentum μ the divisor of
    line 4 is what ηl and a constant gradient of 1 would add up to, see `Descent.reach`: c_k remains a weighted mean of
    gradients.

    Client state: c_k, and the round that it is from. Lost, it is zero, as at first. With all sites in every round c
    heals at once; with partial participation `VariateVersions` notices, and all start anew::

        7  if some client's c_k is not the one that is in c: c, c_k ← 0 in the next round

    The paper has no stages. Here each begins with c, c_k ← 0, as those of `Codasca` do, which for a problem without y
    and with γ = 0 is this algorithm.
    """

    name = "scaffold"
    info = AlgorithmInfo(papers=(papers.SCAFFOLD,), where="Alg. 1", gradients="q")
    messages = Table(
        both(x="d"),
        both(IN_STAGE, c="d", estimate=True, of="control variate: the mean gradient, or its change"),
        kept(ck="d", of="a control variate", round=COUNT),
        VERSIONS,
    )
    solves = frozenset({"minimisation"})
    stacks = True

    lr: float = step_size("ηl: local step size")
    server_lr: float = Field(1.0, gt=0, description="ηg: step size of the server")

    def initial_state(self, start: Arrays) -> Arrays:
        """Start without correction."""
        return start | {"c": torch.zeros_like(start["x"])}

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send x and, past the first round of a stage, c: until then it is zero."""
        names = ("x",) if context.starts_stage else ("x", "c", SINCE)
        return {name: state[name] for name in names if name in state}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-4."""
        x, oracle, descent = sent["x"], self.clipped(oracle), self.descent(context)
        memory = still_valid(memory, sent, context)
        zero = torch.zeros_like(x)
        ck = memory.get("ck", zero)
        correct = sent.get("c", zero) - ck  # constant during a round
        w = x.clone()  # l.1
        for _ in range(context.local_steps):  # l.2
            gw, _ = oracle.gradient(w)
            descent.move(w, gw.add_(correct), self.lr)  # l.3
        path = self.lr * descent.rate * descent.reach(context.local_steps)
        new = (x - w) / max(path, torch.finfo(x.dtype).tiny) - correct  # l.4; after very many rounds 0 / 0
        remembered = {"ck": new, ROUND: torch.tensor([context.round])}
        if self.fraction == 1:
            return {"x": w, "c": new}, remembered
        return {"x": w, "c": new - ck} | origin(memory), remembered

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Lines 5-7."""
        versions, mean_k = VariateVersions(state, context), Mean()
        for reply in replies:
            mean_k.add(versions.count(reply), reply.site.weight)
        mean, zero = mean_k.value(), torch.zeros_like(state["c"])
        x = torch.lerp(state["x"], mean["x"], self.server_lr)  # l.5
        c = mean["c"]  # l.6
        if self.fraction < 1:  # the share is of those whose answers are here, not of those who were asked
            c = c.mul_(mean_k.total / context.total_weight).add_(zero if context.starts_stage else state["c"])
        return versions.saved(dict(state) | {"x": x, "c": c if versions.consistent else zero})  # l.7
