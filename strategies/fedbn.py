"""FedBN (Li, Jiang, Zhang, Kamp & Dou, ICLR 2021, Algorithm 1; arXiv:2102.07623)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edelweiss.federation import AlgorithmInfo, Oracle, Table, both, kept, step_size
from edelweiss.models import MODELS, tracks_statistics
from edelweiss.problems import papers
from edelweiss.problems.capabilities import Layers
from edelweiss.strategies.local_steps import LocalSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edelweiss.common import Value
    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class FedBN(LocalSteps):
    """FedAvg for sites whose features differ: batch norm, with its scale and shift, stays at each site.

    x = (w, β), β the parameters of all batch-norm layers. Client k, from the w it was sent and its own β_k::

        1  repeat q times:
        2      draw a mini-batch; take gw, gβ at (w, β_k)
        3      w ← w - η gw;  β_k ← β_k - η gβ

    Server::

        4  w ← mean_k w_k

    Line 2 updates the running statistics, which stay as well (``bn = "local"``). The step size may fall, and line 3
    have weight decay and momentum, see `LocalSteps`. Vectors are whole: in the places of β a client's answer repeats
    what it was sent, which is what all began with.

    Client state: β, and its places in x. A client that is new or lost them starts with what it is sent.
    """

    name = "fedbn"
    info = AlgorithmInfo(papers=(papers.FEDBN,), where="Alg. 1", gradients="q")
    messages = Table(both(x="d"), kept(norms="n", places="int64 n", of="scale and shift of its batch norm"))
    solves = frozenset({"minimisation"})
    needs = frozenset({Layers})
    personalised = True
    own_statistics = True

    lr: float = step_size("η: local step size")

    @classmethod
    def misfits(cls, keys: Mapping[str, Value]) -> list[str]:
        """Refuse a network without batch norm, as far as that is known of its name."""
        model = str(keys["model"])
        if model not in MODELS.built_in or tracks_statistics(model):
            return []
        able = sorted(name for name in MODELS.built_in if tracks_statistics(name))
        return [
            f"model = {model!r} has no batch norm with running statistics, and algorithm = {cls.name!r} is FedAvg with "
            f'that at the sites: take {", ".join(able)}, or algorithm = "fedavg"'
        ]

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-3. Line 4 is the base's average."""
        places = oracle.norms
        x, oracle = self.personal(sent, memory, oracle.fresh)["x"].clone(), self.clipped(oracle)
        descent = self.descent(context)
        for _ in range(context.local_steps):  # l.1
            descent.step(x, None, oracle, self.lr, 0.0)  # l.2-3
        own = x[places]
        x[places] = sent["x"][places]
        return {"x": x}, {"norms": own, "places": places}

    def personal(self, sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
        """Return the common weights, with the site's own scale and shift."""
        if not memory:
            return sent
        return {"x": sent["x"].index_copy(0, memory["places"], memory["norms"])}
