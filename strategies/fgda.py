"""FGDA (Huang et al., 2024): recursive momentum, and a step from the averages at each synchronisation.

arXiv:2211.07303
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from federation import Card, Oracle
from problems import papers
from strategies.recursive_momentum import RecursiveDescentAscent, corrected, initial_estimate

if TYPE_CHECKING:
    from federation import Turn
    from problems import Arrays


@dataclass(frozen=True, kw_only=True)
class Fgda(RecursiveDescentAscent):
    """FMGDA whose clients take the first step of a round together, and which need no memory.

    Client k, in iterations t = 0, 1, ...; u, v = gx, gy at the start, on a batch of B samples (u is the paper's w)::

        1  every q iterations, except at t = 0: x, y, u, v ← mean_k x_k, mean_k y_k, mean_k u_k, mean_k v_k
        2  x_prev, y_prev ← x, y
        3  x ← x - γ η_t u;  y ← P(y + λ η_t v)
        4  draw a mini-batch; u ← gx(x, y) + (1 - α_t) (u - gx(x_prev, y_prev))
        5                     v ← gy(x, y) + (1 - β_t) (v - gy(x_prev, y_prev))

    Line 1 is the server's, so a round is lines 2-5, q times. At t = 0 each client steps along its own first estimate.
    η_t, α_t, β_t: see `RecursiveMomentum`. With one site it is FMGDA.

    Client state: none.
    """

    name = "fgda"
    card = Card(
        papers=(papers.ADAFGDA,),
        down="2d + 2p",
        up="2d + 2p",
        gradients="2q",
        sends="x, y, and running estimates u, v of both gradients",
    )

    def local_update(self, sent: Arrays, memory: Arrays, oracle: Oracle, turn: Turn) -> tuple[Arrays, Arrays]:
        """Lines 2-5, q times. Line 1 is the base's average."""
        x, y = sent["x"], sent["y"]
        u, v = (sent["u"], sent["v"]) if "u" in sent else initial_estimate(oracle, (x, y), self.initial_batch)
        for step in range(turn.local_steps):
            lr, lr_dual = self.steps(turn, step)
            previous = x, y  # l.2
            x, y = x.sub(u, alpha=lr), oracle.project(y.add(v, alpha=lr_dual))  # l.3
            u, v = corrected(oracle, (x, y), previous, (u, v), self.weights(turn, step))  # l.4-5
        return {"x": x, "y": y, "u": u, "v": v}, {}
