"""CODA+ (Yuan, Guo, Xu, Ying & Yang, ICML 2021, Algorithms 1 and 2; arXiv:2102.04635)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from federation import Card, FederatedStrategy, Oracle, average
from keys import hyper
from problems import papers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from federation import Reply, Site, Turn
    from problems import Arrays


@dataclass(frozen=True, kw_only=True)
class CodaPlus(FederatedStrategy):
    """Stage-wise proximal Local SGDA; a stage's output is the average of all its iterates.

    Client k, in a stage with reference point x_ref::

        1  repeat q_s times:
        2      draw a mini-batch; take gx, gy at (x, y)
        3      x ← x - η_s (gx + γ (x - x_ref))
        4      y ← P(y + η_s gy)
        5      keep the running average (x̃, ỹ) of the iterates of this stage

    Server::

        6  x, y ← mean_k x_k, mean_k y_k
        7  at the end of a stage: x, y ← mean_k x̃_k, mean_k ỹ_k;  x_ref ← x

    Client state: x̃, ỹ and their count. Lost, the average starts anew from there.
    """

    name = "coda-plus"
    card = Card(
        papers=(papers.CODASCA,),
        where="Alg. 1 and 2",
        down="2d + p",
        up="d + p",
        gradients="q",
        sends="x, y; at the end of a stage the averages of its iterates instead",
        remembers="the mean of its iterates in this stage",
    )
    solves = frozenset({"minimax"})

    lr: float = hyper(0.1, "η_1: local step size of x and y in the first stage", above=0.0)
    gamma: float = hyper(0.002, "γ: weight of the proximal term; 1/γ in the paper's notation", low=0.0)

    def initial_state(self, start: Arrays) -> Arrays:
        """Start with x_ref at the initial point."""
        return start | {"x_ref": start["x"]}

    def broadcast(self, state: Arrays, turn: Turn, site: Site) -> Arrays:
        """Send x, y and, unless it is x itself, x_ref."""
        names = ("x", "y") if turn.starts_stage or not self.gamma else ("x", "y", "x_ref")
        return {name: state[name] for name in names}

    def local_update(self, sent: Arrays, memory: Arrays, oracle: Oracle, turn: Turn) -> tuple[Arrays, Arrays]:
        """Lines 1-5."""
        x, y = sent["x"].clone(), sent["y"].clone()
        x_ref = sent.get("x_ref", sent["x"])
        lr = self.lr * turn.rate
        if memory and memory["stage"].item() == turn.stage:
            x_mean, y_mean, count = (
                memory["x_mean"].clone(),
                memory["y_mean"].clone(),
                int(memory["count"].item()),
            )
        else:
            x_mean, y_mean, count = torch.zeros_like(x), torch.zeros_like(y), 0
        for _ in range(turn.local_steps):  # l.1
            gx, gy = oracle.gradient(x, y)  # l.2
            if self.gamma:
                gx.add_(x, alpha=self.gamma).sub_(x_ref, alpha=self.gamma)
            x.add_(gx, alpha=-lr)  # l.3
            y = oracle.project(y + lr * gy)  # l.4
            count += 1
            x_mean.lerp_(x, 1 / count)  # l.5
            y_mean.lerp_(y, 1 / count)
        reply = {"x": x, "y": y} if not turn.ends_stage else {"x_mean": x_mean, "y_mean": y_mean}
        stage, steps = torch.tensor([turn.stage]), torch.tensor([count])
        return reply, {"x_mean": x_mean, "y_mean": y_mean, "count": steps, "stage": stage}

    def aggregate(self, state: Arrays, replies: Iterable[Reply], turn: Turn) -> Arrays:
        """Line 6 or, in the last round of a stage, line 7."""
        mean = average(replies)
        if not turn.ends_stage:
            return state | mean  # l.6
        return state | {"x": mean["x_mean"], "y": mean["y_mean"], "x_ref": mean["x_mean"]}  # l.7
