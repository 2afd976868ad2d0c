"""Ditto (Li, Hu, Beirami & Smith, ICML 2021, Algorithm 1) over FedAvg, or Local SGDA where there is a y.

arXiv:2012.04221
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Oracle, Table, both, kept, step_size
from edelweiss.problems import papers
from edelweiss.strategies.local_steps import LocalSteps, existing

if TYPE_CHECKING:
    from collections.abc import Callable

    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class Ditto(LocalSteps):
    """A common model w, and at each client a model v_k of its own that is kept near to w.

    Client k, from the (w, y) it was sent and its own (v_k, z_k)::

        1  u ← w
        2  repeat q times:
        3      draw a mini-batch
        4      take gu, gy at (u, y);  u ← u - η gu;  y ← P(y + ηy gy)
        5      take gv, gz at (v_k, z_k);  v_k ← v_k - η (gv + λ (v_k - w));  z_k ← P(z_k + ηy gz)

    Server::

        6  w, y ← mean_k u_k, mean_k y_k

    Both models take a step on each mini-batch, so that with λ = 0 v_k is what the client would have without the others
    (`Alone`), and w is `FedAvg`'s whatever λ is. Step sizes may fall, and the steps on u and v_k have weight decay and
    momentum, see `LocalSteps`. Batch-norm statistics are those of v_k. The paper has no y. Each of the two minimax
    problems has the p of AUC that fits it: in line 4 that of all sites, in line 5 the client's own. On ``saddle`` v_k
    goes to the client's own saddle point, as with `Alone`.

    Client state: v, z. A client that is new or lost them starts with the w and y that it is sent.
    """

    name = "ditto"
    info = AlgorithmInfo(papers=(papers.DITTO,), where="Alg. 1", gradients="2q")
    messages = Table(both(x="d", y="p"), kept(x="d", y="p", of="a model of its own, its y"))
    solves = frozenset({"minimisation", "minimax", "conditional"})
    stacks = True
    personalised = True
    own_statistics = True
    own_dual = True

    lr: float = step_size("η: step size of w and v")
    lr_dual: float = step_size("ηy: step size of y and z, where there is a y")
    lam: float = Field(0.1, ge=0, description="λ: how strongly v is pulled to w")

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-5. Line 6 is the base's average."""
        own = memory or sent
        w, u, y = sent["x"], sent["x"].clone(), sent.get("y")  # l.1
        v, z = own["x"].clone(), own.get("y")
        oracle, common, personal = self.clipped(oracle), self.descent(context), self.descent(context)
        for _ in range(context.local_steps):  # l.2
            batch = oracle.draw()  # l.3
            with oracle.aside():
                y = common.step(u, y, oracle, self.lr, self.lr_dual, batch=batch)  # l.4
            z = personal.step(v, z, oracle, self.lr, self.lr_dual, batch=batch, pull=self.lam, towards=w)  # l.5
        return existing(x=u, y=y), existing(x=v, y=z)

    def personal(self, sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
        """Return v and z; w and y before there are any."""
        return memory or sent
