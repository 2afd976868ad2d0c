"""FedDyn (Acar, Zhao, Matas, Mattina, Whatmough & Saligrama, ICLR 2021, Algorithm 1; arXiv:2111.04263)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from edelweiss.federation import COUNT, AlgorithmInfo, Mean, Oracle, Table, down, kept, step_size, up
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import LocalSteps
from edelweiss.strategies.variate_versions import ROUND, SINCE, VariateVersions, origin, still_valid, versions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedDyn(LocalSteps):
    """FedAvg with a regulariser at each client that changes until the clients' optima are the common one.

    Client k minimises f_k(w) - h_kᵀw + α/2 ‖w - x‖² from the x it was sent, with its own h_k::

        1  w ← x
        2  repeat q times:
        3      draw a mini-batch; w ← w - η (gw - h_k + α (w - x))
        4  h_k ← h_k - α (w - x)

    Server::

        5  h ← h - α/K Σ over participants of (w_k - x)
        6  x ← mean over participants of w_k, minus h/α

    At the exact minimum of line 3 h_k is the gradient of f_k at w. Whatever the solver, a point where x, h_k and h rest
    is a stationary point of mean_k f_k: there w_k = x, so h_k is the gradient at x, and h, their mean, is 0.

    Line 6 adds up all steps so far, and what holds against that is how near to its minimum line 3 comes: with few local
    steps and a small α the model overshoots. α near 1 / (q η) or above is safe.

    The step size may fall, and line 3 have weight decay and momentum, see `LocalSteps`. The paper leaves the solver
    open. A client sends w - x in place of w: both h's then are sums of the same steps, also where ``wire`` rounds them.

    Client state: h_k, and the round that it is from. Lost, it is zero, as at first; then h is no longer the mean of the
    h_k, which would leave an error for ever. `VariateVersions` notices, and all start anew::

        7  if some client's h_k is not the one that is in h: x ← mean of w_k; h, h_k ← 0 in the next round

    The paper has no stages. Here each begins with h, h_k ← 0.
    """

    name = "feddyn"
    info = AlgorithmInfo(papers=(papers.FEDDYN,), where="Alg. 1", gradients="q")
    messages = Table(
        down(x="d"),
        up(step="d", of="the way that its model went"),
        kept(hk="d", of="its linear term", round=COUNT),
        versions(),
    )
    solves = frozenset({"minimisation"})
    stacks = True

    lr: float = step_size("η: local step size")
    alpha: float = Field(
        1.0, gt=0, description="α: weight of the regulariser; the paper takes 0.001 to 0.1, with epochs of local steps"
    )

    def initial_state(self, start: Arrays) -> Arrays:
        """Start without a linear term."""
        return start | {"h": torch.zeros_like(start["x"])}

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send x; h is the server's own."""
        names = ("x",) if context.starts_stage else ("x", SINCE)
        return {name: state[name] for name in names if name in state}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-4."""
        x, oracle, descent = sent["x"], self.clipped(oracle), self.descent(context)
        memory = still_valid(memory, sent, context)
        hk = memory.get("hk", torch.zeros_like(x))
        constant = hk.add(x, alpha=self.alpha)  # of the gradient, during a round
        w = x.clone()  # l.1
        for _ in range(context.local_steps):  # l.2
            gw, _ = oracle.gradient(w)
            descent.move(w, gw.add_(w, alpha=self.alpha).sub_(constant), self.lr)  # l.3
        step = w.sub_(x)
        new = hk.sub(step, alpha=self.alpha)  # l.4
        return {"step": step} | origin(memory), {"hk": new, ROUND: torch.tensor([context.round])}

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Lines 5-7."""
        counted, mean_k = VariateVersions(state, context), Mean()
        for reply in replies:
            mean_k.add(counted.count(reply), reply.site.weight)
        mean, zero = mean_k.value()["step"], torch.zeros_like(state["h"])
        share = mean_k.total / context.total_weight
        h = (zero if context.starts_stage else state["h"]).sub(mean, alpha=self.alpha * share)  # l.5
        x = state["x"] + mean
        if counted.consistent:
            x.sub_(h, alpha=1 / self.alpha)  # l.6
        return counted.saved(dict(state) | {"x": x, "h": h if counted.consistent else zero})  # l.7
