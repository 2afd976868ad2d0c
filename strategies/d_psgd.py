"""D-PSGD (Lian et al., NeurIPS 2017, Algorithm 1; arXiv:1705.09056), with any number of local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edelweiss.federation import AlgorithmInfo, Oracle, Table, kept, step_size
from edelweiss.problems import papers
from edelweiss.strategies.decentralised import Decentralised, relay
from edelweiss.strategies.local_steps import existing

if TYPE_CHECKING:
    from collections.abc import Callable

    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class DPSGD(Decentralised):
    """Local SGD, or SGDA where there is a y, and mixing of whole models with those of the neighbours.

    Worker i, from its own (x_i, y_i); all workers start with the same x and y::

        1  repeat q times:
        2      draw a mini-batch; take gx, gy at (x_i, y_i)
        3      x_i ← x_i - ηx gx
        4      y_i ← P(y_i + ηy gy)
        5  x_i ← Σ_j W_ij x_j

    The paper has q = 1, and mixes while it computes the gradient; mixing after the step is what came to be usual. y is
    not mixed. Step sizes may fall, and line 3 have weight decay and momentum, see `LocalSteps`.

    Client state: y, and x where the sites mix. A site that lost its y starts with that of all.
    """

    name = "d-psgd"
    info = AlgorithmInfo(papers=(papers.D_PSGD,), where="Alg. 1", gradients="q")
    messages = relay(x="d") + Table(kept(y="p", of="its y"))
    stacks = True

    lr: float = step_size("ηx: step size of x")
    lr_dual: float = step_size("ηy: step size of y, where there is one")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-4. Line 5 is the base's."""
        own, descent = self.personal(sent, memory, oracle.fresh), self.descent(context)
        x, y, oracle = own["x"].clone(), own.get("y"), self.clipped(oracle)
        for _ in range(context.local_steps):  # l.1
            y = descent.step(x, y, oracle, self.lr, self.lr_dual)  # l.2-4
        return {"x": x}, self.remembered({"x": x}) | existing(y=y)

    def personal(self, sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
        """Return the mix, with the site's own y."""
        return self.received(sent, memory) | existing(y=memory.get("y", fresh().get("y")))
