"""FedRoD (Chen & Chao, ICLR 2022, Algorithm 1, with a linear personalised head; arXiv:2107.00778)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from edelweiss.federation import AlgorithmInfo, Oracle, Table, both, kept, step_size
from edelweiss.problems import papers
from edelweiss.problems.capabilities import BalancedLoss, Layers
from edelweiss.strategies.local_steps import LocalSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edelweiss.common import Value
    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedRoD(LocalSteps):
    """A generic model (φ, ψ) that is averaged, and at each client a second head θ_k beside its head ψ.

    The generic one is trained as if each client had equally many samples of each class: with the balanced softmax
    (Ren et al. 2020), whose logits are h_c + log n_c, n_c the client's samples of class c. The personal one adds its
    logits to the generic ones, on the body's features, and is trained with the plain loss.

    Client k, from the (φ, ψ) it was sent and its own θ_k, at first zero::

        1  repeat q times:
        2      draw a mini-batch
        3      take gφ, gψ of the balanced loss at (φ, ψ)
        4      take gθ of the plain loss, of the logits of ψ and θ_k together
        5      φ ← φ - η gφ;  ψ ← ψ - η gψ;  θ_k ← θ_k - α gθ

    Server::

        6  φ, ψ ← mean_k φ_k, mean_k ψ_k

    Both heads are the last, linear layer, so their logits together are those of one head ψ + θ_k. Step sizes may fall,
    and line 5 have weight decay and momentum, see `LocalSteps`.

    Client state: θ. Lost, it is zero again.
    """

    name = "fedrod"
    info = AlgorithmInfo(papers=(papers.FEDROD,), where="Alg. 1", gradients="2q")
    messages = Table(both(x="d"), kept(head="h", of="a second head"))
    solves = frozenset({"minimisation"})
    needs = frozenset({Layers, BalancedLoss})
    splits_model = True
    personalised = True
    own_statistics = True

    lr: float = step_size("η: step size of the generic model")
    lr_head: float = step_size("α: step size of the personal head")

    @classmethod
    def misfits(cls, keys: Mapping[str, Value]) -> list[str]:
        """Refuse another head than the last layer."""
        if not keys["head"]:
            return []
        return [
            f"head = {keys['head']!r}: algorithm = {cls.name!r} adds up two linear heads, so its head is the "
            'last layer: leave head = ""'
        ]

    def initial_state(self, start: Arrays) -> Arrays:
        """Keep the whole model: the generic head is averaged too."""
        return {name: vector for name, vector in start.items() if name != "body"}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-5. Line 6 is the base's average."""
        x, split = sent["x"].clone(), oracle.head
        theta = memory["head"].clone() if memory else torch.zeros_like(x[split:])
        oracle, generic, personal = self.clipped(oracle), self.descent(context), self.descent(context)
        for _ in range(context.local_steps):  # l.1
            batch = oracle.draw()  # l.2
            gx = oracle.balanced_gradient(x, batch)  # l.3
            own, _ = oracle.gradient(_together(x, theta), None, batch)  # l.4
            generic.move(x, gx, self.lr)  # l.5
            personal.move(theta, own[split:], self.lr_head)
        return {"x": x}, {"head": theta}

    def personal(self, sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
        """Return the generic model, with the two heads in one."""
        return {"x": _together(sent["x"], memory["head"])} if memory else sent


def _together(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """Return x with θ added to its head."""
    split = len(x) - len(theta)
    return torch.cat([x[:split], x[split:] + theta])
