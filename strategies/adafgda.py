"""AdaFGDA (Huang et al., 2024; arXiv:2211.07303): FGDA with adaptive, elementwise step sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field

from edelweiss.federation import COUNT, AlgorithmInfo, Oracle, Table, average, down, kept, up
from edelweiss.problems import papers
from edelweiss.strategies.fgda import Fgda
from edelweiss.strategies.recursive_momentum import remembered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class AdaFgda(Fgda):
    """FGDA whose steps are divided by diagonal matrices A and B, the same at all sites during a round.

    Client k, in iterations t = 0, 1, ...; u, v = gx, gy at the start, on B samples (u is the paper's w)::

        1  x_prev, y_prev ← x, y
        2  every q iterations, except at t = 0: x, y, u, v ← mean_k x_k, mean_k y_k, mean_k u_k, mean_k v_k
        3  every q iterations, of the averages u, v:
               adam:   a ← ϱ a + (1 - ϱ) u²
               belief: a ← ϱ a + (1 - ϱ) (u - u_before)², u_before the average of q iterations earlier
               (both elementwise; b from v in the same way; at the start a = b = 0, and u_before = 0)
           A = √a + ρ;  B = √b + ρ
        4  x ← x - γ η_t u / A;  y ← P(y + λ η_t v / B)
        5  draw a mini-batch; u ← gx(x, y) + (1 - β_t) (u - gx(x_prev, y_prev))
        6                     v ← gy(x, y) + (1 - α_t) (v - gy(x_prev, y_prev))

    Lines 2 and 3 are the server's. The paper generates the first matrices after the clients' first estimates and does
    not say how; here it is by line 3 as well. So the run begins with one exchange more, phase "start", in which the
    sites send their u, v; in line 4 each then steps along its own. The paper prints ρ for ϱ in belief.

    η_t, α_t, β_t: see `RecursiveMomentum`. As the gradients vanish so do a and b, and the step becomes γ η_t / ρ: that
    is what must be small enough.

    Client state: that of `Fgda`, and between the first two exchanges u, v; lost, they are estimated anew.
    """

    name = "adafgda"
    info = AlgorithmInfo(papers=(papers.ADAFGDA,), where="Alg. 1", gradients="2q")
    messages = Fgda.messages.in_phase("train") + Table(
        down(x="d", y="p", phase="start"),
        up(u="d", v="p", phase="start", of="running estimates of both gradients"),
        kept(u="d", v="p", round=COUNT, phase="start", of="its first estimates, within the first round"),
        down(a="d", b="p", phase="train"),
    )
    stacks = True

    lr: float = Field(0.001, gt=0, description="γ: step size of x; times η_t, and up to 1/ρ times that")
    lr_dual: float = Field(0.001, gt=0, description="λ: step size of y; times η_t, and up to 1/ρ times that")
    matrix: Literal["adam", "belief"] = Field("adam", description="what the elements of A and B follow")
    rho: float = Field(0.01, gt=0, description="ρ: least element of A and B")
    varrho: float = Field(0.9, ge=0, le=1, description="ϱ: what a and b keep of themselves at a synchronisation")

    @property
    def step_sizes(self) -> str:
        """The step sizes as a user writes them, and what else bounds a step."""
        return f"{super().step_sizes}, or raise {self.key('rho')} = {self.rho:g} (a step is up to lr / rho)"

    @property
    def phases(self) -> tuple[str, ...]:
        """What A and B begin with, and the local steps."""
        return ("start", "train")

    def plays(self, context: RoundContext) -> bool:
        """Begin once."""
        return context.phase == "train" or context.round == 1

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send all, but in the first round no averages u, v: each client has its own."""
        return state if context.round > 1 else {name: state[name] for name in ("x", "y", "a", "b") if name in state}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """The first estimators, or lines 1 and 4-6, q times."""
        if context.phase == "train":
            return super().local_update(sent, memory, oracle, context)
        u, v = super().first(sent, memory, self.clipped(oracle), context)
        return {"u": u, "v": v}, remembered(context, u=u, v=v)

    def first(self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext) -> tuple[Tensor, Tensor]:
        """Return the estimators (u, v) that the client has sent."""
        return (memory["u"], memory["v"]) if "u" in memory else super().first(sent, memory, oracle, context)

    def matrices(self, sent: Arrays) -> tuple[Tensor, Tensor]:
        """Return the diagonals of A and B."""
        return sent["a"].sqrt().add_(self.rho), sent["b"].sqrt().add_(self.rho)

    def unfit(self, arrays: Arrays, context: RoundContext, d: int) -> str:
        """Require that A and B have roots."""
        below = [name for name in ("a", "b") if name in arrays and bool((arrays[name] < 0).any())]
        return f"array {below[0]!r} has entries below 0" if below else super().unfit(arrays, context, d)

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Lines 2 and 3."""
        new = state | average(replies)  # l.2
        for name, squares in (("u", "a"), ("v", "b")):  # l.3
            change = new[name]
            if self.matrix == "belief" and name in state:
                change = change - state[name]
            old = state[squares] if squares in state else torch.zeros_like(change)
            new[squares] = torch.lerp(change.square(), old, self.varrho)
        return new
