"""NPA, the naive parallel method: the baseline that communicates after every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Oracle
from edelweiss.federation.stages import MOST_STEPS
from edelweiss.strategies.local_sgda import LocalSGDA

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class NPA(LocalSGDA):
    """One step of descent and ascent per round, on a large batch: centralised SGDA with K times the batch.

    Client k, from the (x, y) it was sent::

        1  draw a batch of ``batch`` samples; take gx, gy at (x, y)
        2  x ← x - ηx gx
        3  y ← P(y + ηy gy)

    Server::

        4  x, y ← mean_k x_k, mean_k y_k

    A site that has fewer samples takes all of them. The NPA of the CODA papers has CODA's proximal term and stages too:
    that is ``coda`` or ``coda-plus`` with ``local-steps`` = 1.
    """

    name = "npa"
    info = AlgorithmInfo(gradients="1")

    local_steps: int = Field(1, ge=1, le=MOST_STEPS, description="q: 1, as NPA communicates after every step")
    batch: int = Field(512, ge=1, description="samples of a step at each site; instead of the run's batch size")

    def contradictions(self) -> list[str]:
        """Require q = 1 in all stages, and no momentum, which begins anew in each round."""
        found = super().contradictions()
        if self.momentum:
            found.append(
                f"{self.key('momentum')} = {self.momentum:g}: momentum starts from zero in each round, and a round of "
                f"npa is one step: set {self.key('momentum')}=0"
            )
        for name in ("local_steps", "stage_steps_growth"):
            if (value := getattr(self, name)) != 1:
                found.append(f"{self.key(name)} = {value}: npa synchronises after every step: set {self.key(name)}=1")
        return found

    def gradients(self, x: Tensor, y: Tensor, sent: Arrays, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Line 1."""
        return oracle.gradient(x, y, oracle.draw(self.batch))
