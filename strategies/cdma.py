"""CDMA (Xie et al., AAAI 2023; arXiv:2105.14216): cross-device federated minimax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import (
    LATER,
    AlgorithmInfo,
    Oracle,
    Table,
    When,
    average,
    down,
    step_size,
    up,
)
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import GradientSteps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


WITH_PREVIOUS = When("with `alpha` below 1", lambda algorithm, context: algorithm.alpha < 1)


@dataclass(frozen=True, kw_only=True)
class Cdma(GradientSteps):
    """Local steps along a global direction, which the server estimates; clients keep nothing.

    Client k in round t, phase "direction", from x_t, y_t, x_{t-1}, y_{t-1}::

        1  draw a mini-batch; du_k ← gx(x_t, y_t) - (1 - α) gx(x_{t-1}, y_{t-1});  dv_k likewise

    Server::

        2  u ← mean_k du_k + (1 - α) u;  v ← mean_k dv_k + (1 - α) v   (t = 1: u, v ← mean_k gx, mean_k gy)

    Client k, phase "train", from x_t, y_t, u, v::

        3  repeat q times:
        4      draw a mini-batch; take gx, gy on it at (x, y) and at (x_t, y_t)
        5      x ← x - ηx (gx(x, y) - gx(x_t, y_t) + u)
        6      y ← P(y + ηy (gy(x, y) - gy(x_t, y_t) + v))

    Server::

        7  x, y ← mean_k x_k, mean_k y_k

    Lines 1 and 2 are u_t = gx(x_t) + (1 - α)(u_{t-1} - gx(x_{t-1})), with one vector per client on the wire instead of
    two. In the first step of a round the two gradients of line 5 are one and the same: it is taken without them. With
    α = 1 the previous point plays no part, and is not sent.

    With ``min-replies`` = n > 0 the server aggregates as soon as n usable answers of a phase are there. Later ones are
    dropped; the local engine ends the processes that are still at them. Which sites come first depends on their speed,
    so such runs do not repeat to the bit, unless one process does the work.
    """

    name = "cdma"
    info = AlgorithmInfo(papers=(papers.CDMA,), gradients="2q")
    messages = Table(
        down(x="d", y="p"),
        down(LATER, WITH_PREVIOUS, x_prev="d", y_prev="p", phase="direction"),
        up(
            u="d",
            v="p",
            phase="direction",
            estimate=True,
            of="both gradients of a batch at the common point, less a part of those at the previous one",
        ),
        down(u="d", v="p", phase="train", estimate=True),
        up(x="d", y="p", phase="train"),
    )
    solves = frozenset({"minimax"})
    stacks = True
    drops_stragglers = True

    lr: float = step_size("ηx: local step size of x")
    lr_dual: float = step_size("ηy: local step size of y")
    alpha: float = Field(0.1, gt=0, le=1, description="α: weight of the fresh gradient in u and v")

    @property
    def phases(self) -> tuple[str, ...]:
        """The global direction, and the local steps."""
        return ("direction", "train")

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send the point, with the previous one or with the direction."""
        others = ("u", "v") if context.phase == "train" else ("x_prev", "y_prev") if self.alpha < 1 else ()
        return {name: state[name] for name in ("x", "y", *others) if name in state}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Line 1, or lines 3-6."""
        anchor_x, anchor_y = sent["x"], sent["y"]
        oracle, descent = self.clipped(oracle), self.descent(context)
        if context.phase == "direction":  # l.1
            if "x_prev" in sent:
                weights = (1 - self.alpha, 1 - self.alpha)
                du, dv = oracle.difference((anchor_x, anchor_y), (sent["x_prev"], sent["y_prev"]), weights)
            else:
                du, dv = oracle.gradient(anchor_x, anchor_y)
            return {"u": du, "v": dv}, {}
        u, v = sent["u"], sent["v"]
        lr, lr_dual = self.lr * context.rate, self.lr_dual * context.rate
        x = anchor_x.sub(descent.direction(anchor_x, u), alpha=lr)  # the first step
        y = oracle.project(anchor_y + lr_dual * v)
        for _ in range(context.local_steps - 1):  # l.3
            dx, dy = oracle.difference((x, y), (anchor_x, anchor_y))  # l.4
            x.sub_(descent.direction(x, dx.add_(u)), alpha=lr)  # l.5
            y = oracle.project(y + lr_dual * (dy + v))  # l.6
        return {"x": x, "y": y}, {}

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Line 2, or line 7."""
        mean = average(replies)
        if context.phase == "train":
            return state | mean | {"x_prev": state["x"], "y_prev": state["y"]}  # l.7
        if "u" in state:
            for name in ("u", "v"):
                mean[name].add_(state[name], alpha=1 - self.alpha)
        return state | mean  # l.2
