"""DePRL (Xiong, Yan, Wang & Li, AAAI 2024, Algorithm 1; arXiv:2312.10815)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Oracle, Table, kept
from edelweiss.problems import papers
from edelweiss.strategies.decentralised import Decentralised, relay
from edelweiss.strategies.head_and_body import HeadAndBody, with_head
from edelweiss.strategies.local_steps import existing

if TYPE_CHECKING:
    from collections.abc import Callable

    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class DePRL(HeadAndBody, Decentralised):
    """A body φ that is mixed with those of the neighbours, and at each worker a head θ_i of its own.

    Worker i, from φ_i and its own (θ_i, y_i); all workers start with the same φ and y, each with a random θ_i::

        1  repeat τ times (``local-steps``):
        2      draw a mini-batch; take gθ, gy at (φ_i, θ_i, y_i)
        3      θ_i ← θ_i - α (gθ + λ θ_i);  y_i ← P(y_i + ηy gy)
        4  repeat ``body-steps`` times:
        5      draw a mini-batch; φ_i ← φ_i - β (gφ + λ φ_i)
        6  φ_i ← Σ_j W_ij φ_j

    In round r (from 1) α, β and ηy are their values times decay^(r-1). Lines 1-5 are those of `HeadAndBody`, which says
    what there is to choose and what follows from the seed. The paper counts τ in steps (Algorithm 1) or in epochs (its
    experiments, ``head-unit``), has one step in line 4, and names momentum as possible (Remark 1). Its W is one for all
    rounds (Equation 7, and powers of it in Equation 13); ``regraph`` goes beyond it.

    Client state: θ, y, and φ where the sites mix. Heads are never sent; a site that lost its own starts with its first
    one.
    """

    name = "deprl"
    info = AlgorithmInfo(papers=(papers.DEPRL,), where="Alg. 1", gradients="q + 1")
    messages = relay(body="b", of="the model without its head") + Table(kept(head="h", y="p", of="its head, y"))
    stacks = True

    decay: float = Field(0.96, gt=0, le=1, description="what step sizes are multiplied with from round to round")
    weight_decay: float = Field(1e-5, ge=0, description="λ: weight decay of head and body")

    def beginning(self, state: Arrays) -> Arrays:
        """Send the common body."""
        return {"body": state["body"]}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-5. Line 6 is the base's."""
        x, y = self.trained(self.personal(sent, memory, oracle.fresh), oracle, context)
        reply = {"body": x[..., : oracle.head]}
        return reply, self.remembered(reply) | existing(head=x[..., oracle.head :], y=y)

    def personal(self, sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
        """Return the body that the site has now, with the head and the y of its own."""
        return with_head(self.received(sent, memory), memory, fresh)
