"""FEDNEST for minimax problems (Tarzanagh, Li, Thrampoulidis & Oymak, ICML 2022, Algorithms 1 and 4).

arXiv:2205.02215
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Oracle, Table, down, step_size, up
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import GradientSteps

if TYPE_CHECKING:
    from edelweiss.federation import RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedNest(GradientSteps):
    """Alternates T federated SVRG rounds on y with one on x.

    One round; each "clients" is a phase, an exchange of its own::

        1  repeat T times, x fixed, from y_0 = y:
        2      clients, phase "anchor-y1" to "anchor-yT": draw a batch; h_k ← gy(x, y_0)
        3      server: h ← mean_k h_k
        4      clients, phase "steps-y1" to "steps-yT": q times, each on a fresh mini-batch,
        5          y ← P(y + β (gy(x, y) - gy(x, y_0) + h))
        6      server: y ← mean_k y_k
        7  once, y fixed, from x_0 = x:
        8      clients, phase "anchor-x": h_k ← gx(x_0, y);  server: h ← mean_k h_k
        9      clients, phase "steps-x": q times x ← x - α (gx(x, y) - gx(x_0, y) + h);  server: x ← mean_k x_k

    In the first step the two gradients are one and the same: it is taken without them. Clients keep nothing. The
    paper's name for q is τ.
    """

    name = "fednest"
    info = AlgorithmInfo(papers=(papers.FEDNEST,), where="Alg. 1 and 4", gradients="4q - 2")
    messages = Table(
        down(x="d", y="p"),
        up(h="p", phase="anchor-y*", estimate=True, of="the gradient by y of a batch at the common point"),
        down(h="p", phase="steps-y*", estimate=True),
        up(y="p", phase="steps-y*"),
        up(h="d", phase="anchor-x", estimate=True, of="the gradient by x of a batch at the common point"),
        down(h="d", phase="steps-x", estimate=True),
        up(x="d", phase="steps-x"),
    )
    solves = frozenset({"minimax"})
    stacks = True

    lr: float = step_size("α: step size of x")
    lr_dual: float = step_size("β: step size of y")
    inner_rounds: int = Field(1, ge=1, le=1000, description="T: SVRG rounds on y for each one on x")
    anchor_batch: int = Field(
        0, ge=0, description="samples of an anchor gradient; 0 = batch-size, a mini-batch as any other"
    )

    @property
    def phases(self) -> tuple[str, ...]:
        """2 (T + 1) exchanges."""
        names = [*(f"y{t}" for t in range(1, self.inner_rounds + 1)), "x"]
        return tuple(f"{part}-{name}" for name in names for part in ("anchor", "steps"))

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send the point; for the steps h as well."""
        names = ("x", "y", "h") if context.phase.startswith("steps") else ("x", "y")
        return {name: state[name] for name in names}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Line 2, or lines 4-5; or the same on x. The means are the base's."""
        x, y = sent["x"], sent["y"]
        oracle, descent = self.clipped(oracle), self.descent(context)
        part, _, name = context.phase.partition("-")
        on_x = name == "x"
        if part == "anchor":
            gx, gy = oracle.gradient(x, y, oracle.draw(self.anchor_batch or None))
            return {"h": gx if on_x else gy}, {}
        h = sent["h"]
        lr, lr_dual = self.lr * context.rate, self.lr_dual * context.rate
        if on_x:
            x = x.sub(descent.direction(x, h), alpha=lr)  # the first step
        else:
            y = oracle.project(y + lr_dual * h)
        for _ in range(context.local_steps - 1):
            dx, dy = oracle.difference((x, y), (sent["x"], sent["y"]))
            if on_x:
                x.sub_(descent.direction(x, dx.add_(h)), alpha=lr)  # l.9
            else:
                y = oracle.project(y + lr_dual * (dy + h))  # l.5
        return ({"x": x} if on_x else {"y": y}), {}
