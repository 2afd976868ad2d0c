"""FedRep (Collins, Hassani, Mokhtari & Shakkottai, ICML 2021, Algorithm 1; arXiv:2102.07078)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edelweiss.federation import AlgorithmInfo, Oracle, Table, both, final, kept
from edelweiss.problems import papers
from edelweiss.strategies.head_and_body import HeadAndBody, with_head
from edelweiss.strategies.local_steps import existing

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from edelweiss.federation import RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedRep(HeadAndBody):
    """A common body φ, averaged by the server, and at each client a head θ_k of its own.

    Client k, from the φ it was sent and its own (θ_k, y_k); all start with the same y, each with a random θ_k::

        1  repeat τ times (``local-steps``):
        2      draw a mini-batch; take gθ, gy at (φ, θ_k, y_k)
        3      θ_k ← θ_k - α gθ;  y_k ← P(y_k + ηy gy)
        4  repeat ``body-steps`` times:
        5      draw a mini-batch; φ ← φ - β gφ

    Server::

        6  φ ← mean_k φ_k

    Lines 1-5 are those of `HeadAndBody`, which says what there is to choose and what follows from the seed. The paper
    counts in steps (Algorithm 1), or in epochs (its experiments, ``head-unit`` and ``body-unit``).

    Client state: θ, y. Heads are never sent; a site that lost its own starts with its first one.
    """

    name = "fedrep"
    info = AlgorithmInfo(papers=(papers.FEDREP,), where="Alg. 1", gradients="q + 1")
    messages = Table(
        both(body="b", of="the model without its head"), final(body="b"), kept(head="h", y="p", of="its head, y")
    )
    solves = frozenset({"minimisation", "minimax", "conditional"})
    stacks = True
    personalised = True
    own_statistics = True

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send the body."""
        return {"body": state["body"]}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-5. Line 6 is the base's average."""
        x, y = self.trained(self.personal(sent, memory, oracle.fresh), oracle, context)
        return {"body": x[..., : oracle.head]}, existing(head=x[..., oracle.head :], y=y)

    def personal(self, sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
        """Return the body, with the head and the y of the site's own."""
        return with_head(sent, memory, fresh)

    def final(self, state: Arrays, model: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send the body."""
        return self.broadcast(state, context, site)

    def body(self, state: Arrays, head: int | None) -> Tensor | None:
        """Return the averaged body."""
        return state["body"]
