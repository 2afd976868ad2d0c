"""Local SGDA+ (Deng & Mahdavi, AISTATS 2021, Algorithm 2; Sharma et al., ICML 2022, Algorithm 3).

arXiv:2102.13152, arXiv:2203.04850
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Oracle, Table, When, down
from edelweiss.problems import papers
from edelweiss.strategies.local_sgda import LocalSGDA

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


SNAPSHOT = Table(
    down(When("where the snapshot is not x", lambda algorithm, context: not algorithm.refreshes(context)), snapshot="d")
)


@dataclass(frozen=True, kw_only=True)
class LocalSGDAPlus(LocalSGDA):
    """Local SGDA whose dual sees x only as a snapshot that moves rarely: for f that is not strongly concave in y.

    Client k, from the (x, y, x̃) it was sent::

        1  repeat q times:
        2      draw a mini-batch; take gx at (x, y) and gy at (x̃, y), both on this batch
        3      x ← x - ηx gx
        4      y ← P(y + ηy gy)

    Server::

        5  x, y ← mean_k x_k, mean_k y_k
        6  after every S iterations: x̃ ← x  (before the first: the starting point)

    S is counted in rounds of S/q from the start of each stage, which takes a fresh snapshot; where q grows from stage
    to stage, S grows with it (as q² by default).

    The server keeps x̃ and sends it in every round but those in which it is x itself. So clients remember nothing, and
    one that missed the refresh, or comes for the first time, has the snapshot all the same.
    """

    name = "local-sgda-plus"
    info = AlgorithmInfo(papers=(papers.LOCAL_SGDA, papers.MOMENTUM), where="Alg. 2", gradients="2q")
    messages = LocalSGDA.messages + SNAPSHOT

    snapshot_steps: int = Field(0, ge=0, description="S: iterations between two snapshots, a multiple of q; 0 = q²")

    def contradictions(self) -> list[str]:
        """Require that snapshots fall on synchronisations."""
        found, steps, q = super().contradictions(), self.snapshot_steps, self.local_steps
        if steps % q:
            below = steps - steps % q
            nearest = f"{below} or {below + q}" if below else f"{q}"
            found.append(
                f"{self.key('snapshot_steps')} = {steps}: x is averaged every local-steps = {q} iterations, so it must "
                f"be a multiple of that: set {nearest}, or 0 for q² = {q * q}"
            )
        return found

    def refreshes(self, context: RoundContext) -> bool:
        """Return whether the x that this round starts with is the snapshot."""
        rounds = self.snapshot_steps // self.local_steps or context.local_steps
        return (context.round_in_stage - 1) % rounds == 0

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send everything; the snapshot only where it is not x."""
        return {name: state[name] for name in state if name != "snapshot" or not self.refreshes(context)}

    def gradients(self, x: Tensor, y: Tensor, sent: Arrays, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Line 2."""
        batch = oracle.draw()
        gx, _ = oracle.gradient(x, y, batch)
        _, gy = oracle.gradient(sent.get("snapshot", sent["x"]), y, batch)
        return gx, gy

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Lines 5-6."""
        new = super().aggregate(state, replies, context)
        return new | {"snapshot": state["x"]} if self.refreshes(context) else new
