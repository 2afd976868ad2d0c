"""What decentralised algorithms share: a graph over the sites, and a server that relays between neighbours."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field

from edelweiss.common import FileName
from edelweiss.federation import LATER, StrategyError, Table, When
from edelweiss.federation.table import Row
from edelweiss.strategies.graphs import Graph, Topology, mixing_graph
from edelweiss.strategies.local_steps import LocalSteps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Self

    from torch import Tensor

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.federation.table import Lengths
    from edelweiss.problems import Arrays

log = logging.getLogger("edelweiss")


def squared_norm(vector: Tensor) -> float:
    """Return ‖v‖², added up by NumPy: the order of PyTorch's sums depends on the number of threads."""
    return float(vector.square().numpy().sum())


Parts = dict[int, tuple[float, "Arrays"]]
"""What a site mixes, its own vectors and its neighbours', each with its weight, by their places and in that order."""


FIRST = When("in the first round", lambda algorithm, context: context.round == 1)
SERVER_MIXES = When('with `mixing="server"`', lambda algorithm, context: algorithm.mixing == "server")
SITE_MIXES = When('with `mixing="client"`', lambda algorithm, context: algorithm.mixing == "client")


def relay(start: Lengths | None = None, of: str = "", **shares: str) -> Table:
    """Return the messages of an algorithm whose sites share these vectors with their neighbours.

    ``start`` is what a site is sent of which the server has nothing yet; by default the same vectors.
    """
    start = start or shares
    mixed = Row("down", shares, when=(LATER, SERVER_MIXES), lost=(start,))
    parts = Row("down", shares, when=(LATER, SITE_MIXES), use="relayed", lost=(start,))
    return Table(
        Row("down", start, when=(FIRST,)),
        mixed,
        parts,
        replace(mixed, way="final"),
        replace(parts, way="final"),
        Row("up", shares, of=of, use="relayed"),
        Row("kept", shares, when=(SITE_MIXES,), of="what it shared last"),
    )


@dataclass(frozen=True, kw_only=True)
class Decentralised(LocalSteps):
    """Workers that mix what they have with what their neighbours have: x_i ← Σ_j W_ij x_j.

    Clients of a deployment cannot reach each other, so the server relays. It keeps each site's vectors one by one and
    never averages over all: a site is sent the mix of its neighbours' and its own (``mixing = "server"``), or its
    neighbours' one by one, as "x-3", and mixes them itself (``"client"``: more bytes down, the same numbers). Its own,
    which it remembers, then is an empty vector; lost, it has no part in the mix of that round.

    W is fixed for a run, or with ``regraph = "every-round"`` that of a graph drawn for the mixing after each round.
    Where the server has nothing of a neighbour yet, because its answers were left out, the site itself stands in: W_ii
    grows by W_ij. Later the neighbour's last answer does. A site of which the server has nothing is sent what all start
    with, and so is everybody in the first round.
    """

    solves = frozenset({"minimisation", "minimax", "conditional"})
    partial = False
    personalised = True
    own_statistics = True
    own_dual = True
    topology: Topology = Field("ring", description="who is whose neighbour")
    mean_degree: float = Field(4.0, gt=0, description='neighbours per site, on average, of topology "random"')
    regraph: Literal["never", "every-round"] = Field("never", description='when topology "random" is drawn anew')
    graph_file: Annotated[str, FileName(".toml", ".csv")] = Field("", description='edges of topology "file"')
    mixing: Literal["server", "client"] = Field("server", description="who mixes the vectors of neighbours")

    @property
    def shares(self) -> tuple[str, ...]:
        """Names of the vectors that a site shares with its neighbours; the first of them is never empty."""
        return tuple(name for row in self.messages.of("up") for name in row.vectors)

    # ------------------------------------------------------------------ what an algorithm may write

    def beginning(self, state: Arrays) -> Arrays:
        """Return what a site is sent of which the server has nothing yet: the common start."""
        return {"x": state["x"]}

    def mix(self, row: Parts, own: int) -> Arrays:
        """Return the mix of the vectors in a row for the site at place ``own``, in new memory."""
        mixed: Arrays = {}
        for name in self.shares:
            for weight, vectors in row.values():
                if name in mixed:
                    mixed[name].add_(vectors[name], alpha=weight)
                else:
                    mixed[name] = vectors[name] * weight
        return mixed

    def whole(self, vectors: Arrays) -> Tensor:
        """Return a site's vectors as the part of x that they stand for."""
        return vectors[self.shares[0]]

    # ------------------------------------------------------------------ the server's half

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send a site the mix of its neighbours' vectors and its own, or what to mix."""
        return self._mixed(state, context.sites, site.index, context.round - 1)

    def _mixed(self, state: Arrays, sites: int, k: int, after: int) -> Arrays:
        """Return what site k is sent when so many rounds are over."""
        row = self._row(state, sites, k, after)
        if not row:
            return self.beginning(state)
        if self.mixing == "server" or len(row) == 1:
            return self.mix(row, k)
        sent = {"weights": torch.tensor([weight for weight, _ in row.values()], dtype=torch.float64)}
        for j, (_, vectors) in row.items():
            sent |= {f"{name}-{j}": vectors[name][: 0 if j == k else None] for name in self.shares}
        return sent

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Keep each site's vectors by themselves."""
        new = dict(state)
        for reply in replies:
            new |= {f"{name}-{reply.site.index}": reply.arrays[name] for name in self.shares}
        return new

    def final(self, state: Arrays, model: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send what the next round would begin with."""
        return self._mixed(state, context.sites, site.index, context.round)

    def body(self, state: Arrays, head: int | None) -> Tensor | None:
        """Return the mean over all sites: made once, for new sites, and never sent to those that trained."""
        if not (answered := self._places(state)):
            return state["x"][:head]
        mean = torch.zeros_like(self.whole(self._vectors(state, answered[0])))
        for k in answered:
            mean.add_(self.whole(self._vectors(state, k)), alpha=1 / len(answered))
        return mean[:head]

    def measures(self, state: Arrays, context: RoundContext) -> dict[str, float]:
        """Return 1/N Σ ‖x_i - x̄‖² of what is shared, after mixing, and the spectral gap of W."""
        answered, after = self._places(state), context.round
        mixed = (self.whole(self.mix(self._row(state, context.sites, k, after), k)).double() for k in answered)
        error = 0.0
        if answered:  # of the differences to one of them, which are small, so that little cancels
            origin = next(mixed)
            total, squares = torch.zeros_like(origin), 0.0
            for vector in mixed:
                total.add_(vector.sub_(origin))
                squares += squared_norm(vector)
            error = max(0.0, squares / len(answered) - squared_norm(total / len(answered)))
        return {"consensus-error": error, "spectral-gap": self._graph(context.sites, after).gap}

    def prepare(self, sites: int) -> None:
        """Log the graph; one that cannot be used is refused here."""
        mixing_graph.cache_clear()  # a file may have changed since the last run
        try:
            graph = self._graph(sites, 1)
        except StrategyError as error:
            raise StrategyError(f"{self.name}.{error}", key=f"{self.name}.{error.key}", value=error.value) from None
        degree = len(graph.places) / sites - 1
        drawn = " in the first round" if self.regraph == "every-round" else ""
        log.info("%s: %g neighbours per site on average, spectral gap %.4f%s", self.topology, degree, graph.gap, drawn)

    def contradictions(self) -> list[str]:
        """Refuse a graph that is given twice or not at all, and weights of sites: the graph has its own."""
        found = super().contradictions()
        if (self.topology == "file") != bool(self.graph_file):
            found.append(
                f"{self.key('topology')} = {self.topology!r}, {self.key('graph_file')} = {self.graph_file!r}: "
                'topology "file" needs a graph-file, and no other has one'
            )
        if self.regraph != "never" and self.topology != "random":
            found.append(
                f"{self.key('regraph')} = {self.regraph!r}, {self.key('topology')} = {self.topology!r}: only topology "
                '"random" is drawn, so take that, or regraph = "never"'
            )
        if self.weighting != "uniform":
            found.append(
                f'weighting = {self.weighting!r}: with algorithm = "{self.name}" the graph says how much a site '
                'counts, so take "uniform"'
            )
        return found

    def without_files(self) -> Self:
        """Return it without a file of the graph: a site is told its neighbours by what it is sent."""
        return replace(self, topology="full", graph_file="") if self.graph_file else self

    def _graph(self, sites: int, after: int) -> Graph:
        """Return the graph of the mixing after a round."""
        drawn = after if self.regraph == "every-round" else 0
        return mixing_graph(self.topology, sites, self.seed, self.mean_degree, self.graph_file, drawn)

    def _places(self, arrays: Arrays) -> list[int]:
        """Return the sites whose vectors are here, in their order."""
        first = f"{self.shares[0]}-"
        return sorted(int(name.removeprefix(first)) for name in arrays if name.startswith(first))

    def _vectors(self, state: Arrays, k: int) -> Arrays:
        """Return what site k shared last; empty if it never did."""
        if f"{self.shares[0]}-{k}" not in state:
            return {}
        return {name: state[f"{name}-{k}"] for name in self.shares}

    def _row(self, state: Arrays, sites: int, k: int, after: int = 0) -> Parts:
        """Return what site k mixes after a round; empty where the server has nothing of it."""
        if not self._vectors(state, k):
            return {}
        row = [(j, weight, self._vectors(state, j)) for j, weight in self._graph(sites, after).row(k)]
        lost = sum(weight for _, weight, vectors in row if not vectors)
        return {j: (weight + lost if j == k else weight, vectors) for j, weight, vectors in row if vectors}

    def neighbours(self, site: int, context: RoundContext) -> Collection[int]:
        """Return the sites in the row of W that this one mixes by at the beginning of a round."""
        return [j for j, _ in self._graph(context.sites, context.round - 1).row(site)]

    # ------------------------------------------------------------------ for a client's half

    def unfit(self, arrays: Arrays, context: RoundContext, d: int) -> str:
        """Require that weights are shares."""
        weights = arrays.get("weights")
        if weights is not None and not (bool((weights >= 0).all()) and abs(float(weights.sum()) - 1) < 1e-6):
            return f"array 'weights' adds up to {float(weights.sum()):g}: must be >= 0 and add up to 1"
        return super().unfit(arrays, context, d)

    def received(self, sent: Arrays, memory: Arrays) -> Arrays:
        """Return the mix that a site begins its round with, made here if the server leaves that to the sites."""
        if "weights" not in sent:
            return sent
        row: Parts = {}
        own = -1
        for j, weight in zip(self._places(sent), sent["weights"].tolist(), strict=True):
            vectors = self._vectors(sent, j)
            if not vectors[self.shares[0]].numel():
                own, vectors = j, {name: memory[name] for name in self.shares if name in memory}
            if vectors:
                row[j] = weight, vectors
        total = sum(weight for weight, _ in row.values()) if own not in row else 1.0
        return self.mix({j: (weight / total, vectors) for j, (weight, vectors) in row.items()}, own)

    def remembered(self, reply: Arrays) -> Arrays:
        """Return what of its reply a site needs in the next round: its own part of the mix, if it makes that."""
        return reply if self.mixing == "client" else {}
