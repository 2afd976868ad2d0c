"""AdaFGDA (Huang et al., 2024; arXiv:2211.07303): FGDA with adaptive, elementwise step sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from federation import Card, Oracle, average
from keys import choice, hyper
from problems import papers
from strategies.recursive_momentum import RecursiveDescentAscent, corrected, initial_estimate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from federation import Reply, Turn
    from problems import Arrays


@dataclass(frozen=True, kw_only=True)
class AdaFgda(RecursiveDescentAscent):
    """FGDA whose steps are divided by diagonal matrices A and B, the same at all sites during a round.

    Client k, in iterations t = 0, 1, ...; u, v = gx, gy at the start, on a batch of B samples (u is the paper's w)::

        1  every q iterations, except at t = 0: x, y, u, v ← mean_k x_k, mean_k y_k, mean_k u_k, mean_k v_k
        2      adam:   a ← ϱ a + (1 - ϱ) u²
               belief: a ← ϱ a + (1 - ϱ) (u - u_before)², u_before the average of one synchronisation earlier
               (both elementwise; b from v in the same way; a = b = 0 at the start)
        3  A = √a + ρ;  B = √b + ρ
        4  x_prev, y_prev ← x, y
        5  x ← x - γ η_t u / A;  y ← P(y + λ η_t v / B)
        6  draw a mini-batch; u ← gx(x, y) + (1 - α_t) (u - gx(x_prev, y_prev))
        7                     v ← gy(x, y) + (1 - β_t) (v - gy(x_prev, y_prev))

    Lines 1 and 2 are the server's. The first ``belief`` has no average before it and takes u² as ``adam`` does.
    η_t, α_t, β_t: see `RecursiveMomentum`. As the gradients vanish so do a and b, and the step becomes γ η_t / ρ: that
    is what must be small enough. In the first round it is that, too.

    Client state: none.
    """

    name = "adafgda"
    card = Card(
        papers=(papers.ADAFGDA,),
        where="Alg. 1",
        down="3d + 3p",
        up="2d + 2p",
        gradients="2q",
        sends="x, y, and running estimates u, v of both gradients",
    )

    lr: float = hyper(0.001, "γ: step size of x; times η_t, and up to 1/ρ times that", above=0.0)
    lr_dual: float = hyper(0.001, "λ: step size of y; times η_t, and up to 1/ρ times that", above=0.0)
    matrix: str = choice("adam", "what the elements of A and B follow", "adam", "belief")
    rho: float = hyper(0.01, "ρ: least element of A and B", above=0.0)
    varrho: float = hyper(0.9, "ϱ: what a and b keep of themselves at a synchronisation", low=0.0, high=1.0)

    @property
    def step_sizes(self) -> str:
        """The step sizes as a user writes them, and what else bounds a step."""
        return f"{super().step_sizes}, or raise {self.key('rho')} = {self.rho:g} (a step is up to lr / rho)"

    def local_update(self, sent: Arrays, memory: Arrays, oracle: Oracle, turn: Turn) -> tuple[Arrays, Arrays]:
        """Lines 3-7."""
        x, y = sent["x"], sent["y"]
        u, v = (sent["u"], sent["v"]) if "u" in sent else initial_estimate(oracle, (x, y), self.initial_batch)
        A, B = self._matrix(x, sent.get("a")), self._matrix(y, sent.get("b"))  # l.3
        for step in range(turn.local_steps):
            lr, lr_dual = self.steps(turn, step)
            previous = x, y  # l.4
            x, y = x.addcdiv(u, A, value=-lr), oracle.project(y.addcdiv(v, B, value=lr_dual))  # l.5
            u, v = corrected(oracle, (x, y), previous, (u, v), self.weights(turn, step))  # l.6-7
        return {"x": x, "y": y, "u": u, "v": v}, {}

    def _matrix(self, point: Tensor, squares: Tensor | None) -> Tensor:
        """Return the diagonal of A or B; no squares are sent while they are zero, in the first round."""
        return torch.full_like(point, self.rho) if squares is None else squares.sqrt().add_(self.rho)

    def aggregate(self, state: Arrays, replies: Iterable[Reply], turn: Turn) -> Arrays:
        """Lines 1 and 2."""
        new = state | average(replies)  # l.1
        for name, squares in (("u", "a"), ("v", "b")):  # l.2
            change = new[name]
            if self.matrix == "belief" and name in state:
                change = change - state[name]
            old = state[squares] if squares in state else torch.zeros_like(change)
            new[squares] = torch.lerp(change.square(), old, self.varrho)
        return new
