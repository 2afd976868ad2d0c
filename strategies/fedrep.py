"""FedRep (Collins, Hassani, Mokhtari & Shakkottai, ICML 2021, Algorithm 1; arXiv:2102.07078)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from federation import Card, FederatedStrategy, Oracle
from keys import hyper
from problems import papers
from problems.capabilities import Layers
from strategies.local_steps import existing, given_head, step, with_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from federation import Site, Turn
    from keys import Value
    from problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedRep(FederatedStrategy):
    """A common body φ, averaged by the server, and at each client a head θ_k of its own.

    Client k, from the φ it was sent and its own (θ_k, y_k); all clients start with the same::

        1  repeat τ times (``local-steps``):
        2      draw a mini-batch; take gθ, gy at (φ, θ_k, y_k)
        3      θ_k ← θ_k - α gθ;  y_k ← P(y_k + ηy gy)
        4  repeat ``body-steps`` times:
        5      draw a mini-batch; φ ← φ - β gφ

    Server::

        6  φ ← mean_k φ_k

    The paper has no y: that is the adversary of the client's own head, so it moves with the head. The problem's own
    scalars are part of the head.

    Client state: θ, y. Heads are never sent; a site that lost its own starts with the first one, which follows from the
    run's seed.
    """

    name = "fedrep"
    card = Card(
        papers=(papers.FEDREP,),
        where="Alg. 1",
        down="b",
        up="b",
        gradients="q + 1",
        sends="the body, which is x without its head; head and y stay",
        remembers="its head, y",
    )
    solves = frozenset({"minimisation", "minimax", "conditional"})
    needs = frozenset({Layers})
    splits_model = True
    personalised = True
    own_statistics = True

    lr_head: float = hyper(0.1, "α: step size of the head", above=0.0)
    lr_body: float = hyper(0.1, "β: step size of the body", above=0.0)
    lr_dual: float = hyper(0.1, "ηy: step size of y, where there is one", above=0.0)
    body_steps: int = hyper(1, "steps on the body, after local-steps on the head", low=1)

    @classmethod
    def misfits(cls, keys: Mapping[str, Value]) -> list[str]:
        """Refuse a head that is given."""
        return given_head(cls.name, keys)

    def broadcast(self, state: Arrays, turn: Turn, site: Site) -> Arrays:
        """Send the body."""
        return {"body": state["body"]}

    def local_update(self, sent: Arrays, memory: Arrays, oracle: Oracle, turn: Turn) -> tuple[Arrays, Arrays]:
        """Lines 1-5. Line 6 is the base's average."""
        own = self.personal(sent, memory, oracle.fresh())
        lr_head, lr_body, lr_dual = self.lr_head * turn.rate, self.lr_body * turn.rate, self.lr_dual * turn.rate
        x, y, body, head = own["x"], own.get("y"), slice(oracle.head), slice(oracle.head, None)
        for _ in range(turn.local_steps):  # l.1
            y = step(x, y, oracle, lr_head, lr_dual, part=head)  # l.2-3
        for _ in range(self.body_steps):  # l.4
            step(x, y, oracle, lr_body, 0.0, part=body)  # l.5
        return {"body": x[body]}, existing(head=x[head], y=y)

    def personal(self, sent: Arrays, memory: Arrays, fresh: Arrays) -> Arrays:
        """Return the body, with the head and the y of the site's own."""
        return with_head(sent, memory, fresh)

    def final(self, state: Arrays, model: Arrays, turn: Turn, site: Site) -> Arrays:
        """Send the body."""
        return self.broadcast(state, turn, site)

    def body(self, state: Arrays, head: int | None) -> Tensor | None:
        """Return the averaged body."""
        return state["body"]
