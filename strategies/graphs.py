"""Who is whose neighbour in decentralised learning, and how much a neighbour counts."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from edelweiss.common import Stream, shown
from edelweiss.common.files import TEXT, read_file, read_toml
from edelweiss.common.numbers import whole
from edelweiss.federation import StrategyError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Topology = Literal["ring", "random", "full", "star", "file"]
LISTED = 5  # components, and sites of each, that an error names


@dataclass(frozen=True, eq=False)
class Graph:
    """A connected undirected graph over K sites, as W: how much each counts in the mix of another.

    Metropolis-Hastings (Xiao & Boyd 2004): w_ij = 1 / (1 + max(deg_i, deg_j)) for neighbours, w_ii what is left to 1.
    Then W is symmetric, and its rows and columns sum to 1; of a full graph all weights are 1/K. What is not zero is
    kept, row by row, so that memory and time grow with the number of edges.

    Attributes
    ----------
    starts : ndarray
        Where each row begins in the other two, and their length; shape (K + 1,).
    places, weights : ndarray
        j and w_ij, in the order of j; shape (K + 2 edges,).
    """

    starts: NDArray[np.int64]
    places: NDArray[np.int64]
    weights: NDArray[np.float64]

    def row(self, site: int) -> list[tuple[int, float]]:
        """Return the sites whose vectors a site mixes, itself among them, with their weights, in their order."""
        part = slice(*self.starts[site : site + 2])
        return list(zip(self.places[part].tolist(), self.weights[part].tolist(), strict=True))

    def matrix(self) -> NDArray[np.float64]:
        """Return W, shape (K, K)."""
        sites = len(self.starts) - 1
        w = np.zeros((sites, sites))
        w[np.repeat(np.arange(sites), np.diff(self.starts)), self.places] = self.weights
        return w

    @cached_property
    def gap(self) -> float:
        """The spectral gap 1 - max(|λ₂|, |λ_K|), in (0, 1]: how fast mixing alone brings sites together; 1 of one."""
        values = np.sort(np.abs(np.linalg.eigvalsh(self.matrix())))
        return float(1.0 - values[-2]) if len(values) > 1 else 1.0


@lru_cache(maxsize=8)
def mixing_graph(
    topology: str, sites: int, seed: int = 0, mean_degree: float = 4.0, file: str = "", drawn: int = 0
) -> Graph:
    """Return the graph of a run, or of a round; a file is read once.

    Parameters
    ----------
    topology : str
        ``"ring"``; ``"random"``: edges drawn uniformly, after as many as connect all (a random tree); ``"full"``;
        ``"star"``: site 0 is everybody's neighbour; ``"file"``: see `read_edges`.
    sites : int
        K ≥ 1.
    seed : int
        Of ``"random"``.
    mean_degree : float
        Of ``"random"``: neighbours per site, on average, from 2 (K-1)/K; K - 1 or more is a full graph.
    file : str
        Path of the list of edges of ``"file"``.
    drawn : int
        Of ``"random"``: the number of the draw, 0 for that of a run, r for that of round r.

    Raises
    ------
    StrategyError
        For a graph that is not connected (its components are named), that is not over these sites, or a file that
        cannot be read.
    """
    graph = _weighted(_edges(topology, sites, seed, mean_degree, file, drawn), sites)
    parts = components(graph)
    if len(parts) > 1:
        listed = "; ".join(_some(part) for part in parts[:LISTED]) + ("; ..." if len(parts) > LISTED else "")
        raise StrategyError(
            f"graph-file = {file!r}: the graph is not connected, it falls into {len(parts)} components of sites: "
            f"{listed}. Add edges between them",
            key="graph-file",
            value=parts,
        )
    return graph


def components(graph: Graph) -> list[list[int]]:
    """Return the connected components of a graph, each sorted, in the order of their first sites."""
    unseen, found = set(range(len(graph.starts) - 1)), []
    while unseen:
        part, front = set(), {min(unseen)}
        while front:
            part |= front
            unseen -= front
            front = {j for i in front for j, _ in graph.row(i)} & unseen
        found.append(sorted(part))
    return found


def read_edges(file: str) -> list[tuple[int, int]]:
    """Read a list of edges between sites, numbered from 0 in the order of their places.

    CSV: two numbers per line, after a line of names or none. TOML: ``edges = [[0, 1], [1, 2]]``, and nothing else. An
    edge holds in both directions; how much it counts follows from the graph (see `Graph`).

    Raises
    ------
    StrategyError
        For a file that cannot be read, or holds anything else.
    """
    form = 'a .toml file with edges = [[0, 1], [1, 2]], or a .csv file with lines such as "0,1"'
    others: list[str] = []

    def refused(text: str, value: object) -> StrategyError:
        return StrategyError(f"graph-file = {file!r}{text}", key="graph-file", value=value)

    try:
        if file.endswith(".toml"):
            table = read_toml(file)
            rows, others = list(table.pop("edges")), [*table]
        else:
            text = read_file(file, TEXT).decode("utf-8-sig")
            lines = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
            names = bool(lines) and not any(cell.lstrip("+-")[:1].isnumeric() for cell in lines[0])
            rows = [[whole(cell) for cell in row] for row in lines[names:]]
    except (OSError, UnicodeDecodeError) as error:
        raise refused(f" cannot be read ({error}): give {form}", file) from None
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise refused(f" is no list of edges ({error}): give {form}", file) from None
    if others:
        listed = ", ".join(map(shown, others[:LISTED]))
        raise refused(f": nothing but edges counts there: leave out {listed}", others)
    for row in rows:
        if not isinstance(row, list) or len(row) != 2 or any(type(end) is not int or end < 0 for end in row):
            raise refused(f": {row} is no pair of sites: give {form}", row)
        if row[0] == row[1]:
            raise refused(f": the edge {row} leads from a site to itself: leave it out", row)
    return [(i, j) for i, j in rows]


def _weighted(edges: NDArray[np.int64], sites: int) -> Graph:
    """Return the graph of these edges, shape (n, 2); one that comes twice counts once."""
    edges = np.unique(np.sort(edges, axis=1), axis=0)
    i, j = np.concatenate([edges, edges[:, ::-1]]).T
    degree = np.bincount(i, minlength=sites)
    weights = 1.0 / (1.0 + np.maximum(degree[i], degree[j]))
    own = 1.0 - np.bincount(i, weights, minlength=sites)
    everybody = np.arange(sites)
    i, j, weights = np.append(i, everybody), np.append(j, everybody), np.append(weights, own)
    order = np.lexsort((j, i))
    return Graph(np.append(0, np.cumsum(degree + 1)), j[order], weights[order])


def _edges(topology: str, sites: int, seed: int, mean_degree: float, file: str, drawn: int) -> NDArray[np.int64]:
    """Return who is whose neighbour, shape (n, 2)."""
    everybody = np.arange(sites)
    if topology == "ring":
        return np.stack([everybody, (everybody + 1) % sites], axis=1)[sites == 1 :]  # one site has no neighbour
    if topology == "star":
        return np.stack([np.zeros_like(everybody), everybody], axis=1)[1:]
    if topology == "full":
        return np.stack(np.tril_indices(sites, -1), axis=1)
    if topology == "random":
        return _random(sites, seed, mean_degree, drawn)
    edges = read_edges(file)
    if beyond := sorted({end for edge in edges for end in edge if end >= sites}):
        raise StrategyError(
            f"graph-file = {file!r} is a graph of {beyond[-1] + 1} sites or more, and the run has sites = {sites}, "
            f"numbered 0 to {sites - 1}: it names {_some(beyond)}",
            key="graph-file",
            value=beyond,
            allowed=sites,
        )
    return np.array(edges, dtype=np.int64).reshape(-1, 2)


def _random(sites: int, seed: int, mean_degree: float, drawn: int) -> NDArray[np.int64]:
    wanted = round(sites * mean_degree / 2)
    if wanted < sites - 1:
        raise StrategyError(
            f"mean-degree = {mean_degree:g}: a connected graph of {sites} sites needs at least "
            f"{2 * (sites - 1) / sites:g} neighbours per site on average",
            key="mean-degree",
            value=mean_degree,
            allowed=2 * (sites - 1) / sites,
        )
    pairs = np.stack(np.tril_indices(sites, -1), axis=1)
    pairs = pairs[np.random.default_rng([seed, Stream.GRAPH, drawn]).permutation(len(pairs))]
    tree: list[int] = []
    root = list(range(sites))

    def top(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for place, (i, j) in enumerate(pairs):
        if len(tree) == sites - 1:
            break
        if top(i) != top(j):
            root[top(i)] = top(j)
            tree.append(place)
    rest = np.delete(pairs, tree, axis=0)
    return np.concatenate([pairs[tree], rest[: wanted - len(tree)]])


def _some(sites: list[int]) -> str:
    """List sites, not all if there are many."""
    return ", ".join(map(str, sites[:LISTED])) + (f" and {len(sites) - LISTED} more" if len(sites) > LISTED else "")
