"""DePRL (Xiong, Yan, Wang & Li, AAAI 2024, Algorithm 1; arXiv:2312.10815)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from federation import Card, Oracle
from keys import hyper
from problems import papers
from problems.capabilities import Layers
from strategies.decentralised import Decentralised
from strategies.local_steps import existing, given_head, step, with_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from federation import Turn
    from keys import Value
    from problems import Arrays


@dataclass(frozen=True, kw_only=True)
class DePRL(Decentralised):
    """A body φ that is mixed with those of the neighbours, and at each worker a head θ_i of its own.

    Worker i, from φ_i and its own (θ_i, y_i); all workers start with the same::

        1  repeat τ times (``local-steps``):
        2      draw a mini-batch; take gθ, gy at (φ_i, θ_i, y_i)
        3      θ_i ← θ_i - α (gθ + λ θ_i);  y_i ← P(y_i + ηy gy)
        4  repeat ``body-steps`` times:
        5      draw a mini-batch; φ_i ← φ_i - β (gφ + λ φ_i)
        6  φ_i ← Σ_j W_ij φ_j

    In round r (from 1) α, β and ηy are their values times decay^(r-1). The paper has one step in line 4, and no y: that
    is the adversary of the worker's own head, so it moves with it. The problem's own scalars are part of the head.

    Client state: θ, y, and φ where the sites mix. Heads are never sent; a site that lost its own starts with the first
    one, which follows from the run's seed.
    """

    name = "deprl"
    card = Card(
        papers=(papers.DEPRL,),
        where="Alg. 1",
        down="b",
        up="b",
        gradients="q + 1",
        sends="the body, which is x without its head; head and y stay",
        remembers="its head, y",
    )
    needs = frozenset({Layers})
    splits_model = True
    shares = ("body",)

    lr_head: float = hyper(0.1, "α: step size of the head", above=0.0)
    lr_body: float = hyper(0.1, "β: step size of the body", above=0.0)
    lr_dual: float = hyper(0.1, "ηy: step size of y, where there is one", above=0.0)
    body_steps: int = hyper(1, "steps on the body, after local-steps on the head", low=1)
    decay: float = hyper(0.96, "what step sizes are multiplied with from round to round", above=0.0, high=1.0)
    weight_decay: float = hyper(1e-5, "λ: of head and body", low=0.0)

    @classmethod
    def misfits(cls, keys: Mapping[str, Value]) -> list[str]:
        """Refuse a head that is given."""
        return given_head(cls.name, keys)

    def beginning(self, state: Arrays) -> Arrays:
        """Send the common body."""
        return {"body": state["body"]}

    def local_update(self, sent: Arrays, memory: Arrays, oracle: Oracle, turn: Turn) -> tuple[Arrays, Arrays]:
        """Lines 1-5. Line 6 is the base's."""
        own = self.personal(sent, memory, oracle.fresh())
        rate = turn.rate * self.decay ** (turn.round - 1)
        lr_head, lr_body, lr_dual = self.lr_head * rate, self.lr_body * rate, self.lr_dual * rate
        x, y, body, head = own["x"], own.get("y"), slice(oracle.head), slice(oracle.head, None)
        for _ in range(turn.local_steps):  # l.1
            y = step(x, y, oracle, lr_head, lr_dual, part=head, decay=self.weight_decay)  # l.2-3
        for _ in range(self.body_steps):  # l.4
            step(x, y, oracle, lr_body, 0.0, part=body, decay=self.weight_decay)  # l.5
        return {"body": x[body]}, self.remembered({"body": x[body]}) | existing(head=x[head], y=y)

    def personal(self, sent: Arrays, memory: Arrays, fresh: Arrays) -> Arrays:
        """Return the body that the site has now, with the head and the y of its own."""
        return with_head(self.received(sent, memory), memory, fresh)
