"""FESS-GDA (Shen, Huang, Zhang & Shen, AISTATS 2024; arXiv:2311.00944)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from edelweiss.federation import AlgorithmInfo, average
from edelweiss.problems import papers
from edelweiss.strategies.local_sgda import LocalSGDA
from edelweiss.strategies.local_steps import Descent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FessGda(LocalSGDA):
    """Local SGDA on f(x, y) + s/2 ‖x - z‖², whose z follows x: the server pulls its x towards where it was.

    Client k, from the (x, y) it was sent::

        1  repeat q times:
        2      draw a mini-batch; take gx, gy at (x, y)
        3      x ← x - ηx gx
        4      y ← P(y + ηy gy)

    Server, with z the starting point at first::

        5  x ← x + ηgx (mean_k x_k - x) - ηgx ηx q s (x - z), both terms from the old x
        6  y ← P(y + ηgy (mean_k y_k - y))
        7  z ← z + β (x - z), with the new x

    The paper calls s p. The term (s/2) ‖x - z‖² moves only the server's x, once in a round, by as much as q steps at
    the point sent would; where x rests, so does z, and the term is zero: the stationary points are those of f. With
    s = 0 and server steps of 1 it is Local SGDA. With q steps of momentum, line 5 has the length of their path for q.

    z stays with the server through all stages. So clients remember nothing, and any part of them may take part.

    The lines are from a third party's transcription of the paper; docs/paper-deviations.md says what was checked.
    """

    name = "fess-gda"
    info = AlgorithmInfo(papers=(papers.FESS_GDA,), gradients="q")

    server_lr: float = Field(1.0, gt=0, description="ηgx: step size of the server for x")
    server_lr_dual: float = Field(1.0, gt=0, description="ηgy: step size of the server for y")
    smoothing: float = Field(
        0.05, ge=0, description="s: weight of the pull towards z; the paper's theory: twice the smoothness of f, or 0"
    )
    beta: float = Field(0.5, gt=0, le=1, description="β: how far z follows x in a round")

    def contradictions(self) -> list[str]:
        """Require that the pull does not lead beyond z."""
        found = super().contradictions()
        steps = self.lr * self.server_lr * Descent(momentum=self.momentum).reach(self.local_steps)
        if steps * self.smoothing > 1:
            names = ("lr", "server_lr", *["momentum"] * bool(self.momentum))
            others = ", ".join(f"{self.key(name)} = {getattr(self, name):g}" for name in names)
            found.append(
                f"{self.key('smoothing')} = {self.smoothing:g}: with {others} and local-steps = {self.local_steps} the "
                f"server's x would be pulled beyond z: set at most {0.999 / steps:.3g}, or take shorter or fewer steps"
            )
        return found

    def initial_state(self, start: Arrays) -> Arrays:
        """Start with z at x."""
        return start | {"z": start["x"]}

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send x, y; z is the server's own."""
        return {"x": state["x"], "y": state["y"]}

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Lines 5-7. The loop projects y."""
        mean, x, z = average(replies), state["x"], state["z"]
        pull = self.lr * self.descent(context).rate * self.descent(context).reach(context.local_steps) * self.smoothing
        new = x + self.server_lr * (mean["x"] - x - pull * (x - z))  # l.5
        y = torch.lerp(state["y"], mean["y"], self.server_lr_dual)  # l.6
        return {"x": new, "y": y, "z": torch.lerp(z, new, self.beta)}  # l.7
