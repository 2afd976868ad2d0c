"""Who is whose neighbour in decentralised learning, and how much a neighbour counts."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strategies.hyper import StrategyError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOPOLOGIES = ("ring", "random", "full", "star", "file")
LISTED = 5  # components, and sites of each, that an error names

Edge = tuple[int, int]


def mixing_matrix(
    topology: str, sites: int, *, seed: int = 0, mean_degree: float = 4.0, file: str = ""
) -> NDArray[np.float64]:
    """Return W, the weights of a connected undirected graph over the sites.

    Metropolis-Hastings (Xiao & Boyd 2004): w_ij = 1 / (1 + max(deg_i, deg_j)) for neighbours, w_ii what is left to 1.
    Then W is symmetric, and its rows and columns sum to 1; of a full graph all weights are 1/K.

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

    Returns
    -------
    ndarray
        Shape (K, K).

    Raises
    ------
    StrategyError
        For a graph that is not connected (its components are named), that is not over these sites, or a file that
        cannot be read.
    """
    edges = _edges(topology, sites, seed, mean_degree, file)
    adjacent = np.zeros((sites, sites), dtype=bool)
    for i, j in edges:
        adjacent[i, j] = adjacent[j, i] = True
    parts = components(adjacent)
    if len(parts) > 1:
        listed = "; ".join(_some(part) for part in parts[:LISTED]) + ("; ..." if len(parts) > LISTED else "")
        raise StrategyError(
            f"{_source(topology, file)}: the graph is not connected, it falls into {len(parts)} components of sites: "
            f"{listed}. Add edges between them"
        )
    degree = adjacent.sum(1)
    weights = np.where(adjacent, 1.0 / (1.0 + np.maximum(degree[:, None], degree[None, :])), 0.0)
    np.fill_diagonal(weights, 1.0 - weights.sum(1))
    return weights


def neighbours(weights: NDArray[np.float64], site: int) -> list[tuple[int, float]]:
    """Return the sites whose vectors a site mixes, itself among them, with their weights, in their order."""
    row = weights[site]
    return [(int(j), float(row[j])) for j in np.flatnonzero(row)]


def spectral_gap(weights: NDArray[np.float64]) -> float:
    """Return 1 - max(|λ₂|, |λ_K|), in (0, 1]: how fast mixing alone brings sites together; of one site 1."""
    values = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return float(1.0 - values[-2]) if len(values) > 1 else 1.0


def components(adjacent: NDArray[np.bool_]) -> list[list[int]]:
    """Return the connected components of a graph, each sorted, in the order of their first sites."""
    unseen, found = set(range(len(adjacent))), []
    while unseen:
        part, front = set(), {min(unseen)}
        while front:
            part |= front
            unseen -= front
            front = {int(j) for i in front for j in np.flatnonzero(adjacent[i])} & unseen
        found.append(sorted(part))
    return found


def read_edges(file: str) -> list[Edge]:
    """Read a list of edges between sites, numbered from 0 in the order of their places.

    CSV: two numbers per line, after a line of names or none. TOML: ``edges = [[0, 1], [1, 2]]``. An edge holds in both
    directions.

    Raises
    ------
    StrategyError
        For a file that cannot be read, or holds anything else.
    """
    path = Path(file).expanduser()
    form = 'a .toml file with edges = [[0, 1], [1, 2]], or a .csv file with lines such as "0,1"'
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".toml":
            rows = list(tomllib.loads(text)["edges"])
        else:
            lines = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
            names = bool(lines) and not any(cell.lstrip("-").isdigit() for cell in lines[0])
            rows = [[int(cell) for cell in row] for row in lines[names:]]
    except (OSError, UnicodeDecodeError) as error:
        raise StrategyError(f"graph-file = {file!r} cannot be read ({error}): give {form}") from None
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise StrategyError(f"graph-file = {file!r} is no list of edges ({error}): give {form}") from None
    for row in rows:
        if not isinstance(row, list) or len(row) != 2 or any(type(end) is not int or end < 0 for end in row):
            raise StrategyError(f"graph-file = {file!r}: {row} is no pair of sites: give {form}")
        if row[0] == row[1]:
            raise StrategyError(f"graph-file = {file!r}: the edge {row} leads from a site to itself: leave it out")
    return [(i, j) for i, j in rows]


def _edges(topology: str, sites: int, seed: int, mean_degree: float, file: str) -> list[Edge]:
    if topology == "ring":
        return [(i, (i + 1) % sites) for i in range(sites)] if sites > 1 else []
    if topology == "star":
        return [(0, i) for i in range(1, sites)]
    if topology == "full":
        return [(i, j) for i in range(sites) for j in range(i)]
    if topology == "random":
        return _random(sites, seed, mean_degree)
    edges = read_edges(file)
    if beyond := sorted({end for edge in edges for end in edge if end >= sites}):
        raise StrategyError(
            f"graph-file = {file!r} is a graph of {beyond[-1] + 1} sites or more, and the run has sites = {sites}, "
            f"numbered 0 to {sites - 1}: it names {_some(beyond)}"
        )
    return edges


def _random(sites: int, seed: int, mean_degree: float) -> list[Edge]:
    wanted = round(sites * mean_degree / 2)
    if wanted < sites - 1:
        raise StrategyError(
            f"mean-degree = {mean_degree:g}: a connected graph of {sites} sites needs at least "
            f"{2 * (sites - 1) / sites:g} neighbours per site on average"
        )
    first, second = np.tril_indices(sites, -1)
    order = np.random.default_rng([seed, 8]).permutation(len(first))
    pairs = list(zip(first[order].tolist(), second[order].tolist(), strict=True))
    tree, rest, root = [], [], list(range(sites))

    def top(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for i, j in pairs:
        if top(i) == top(j):
            rest.append((i, j))
        else:
            root[top(i)] = top(j)
            tree.append((i, j))
    return tree + rest[: wanted - len(tree)]


def _source(topology: str, file: str) -> str:
    return f"graph-file = {file!r}" if topology == "file" else f"topology = {topology!r}"


def _some(sites: list[int]) -> str:
    """List sites, not all if there are many."""
    return ", ".join(map(str, sites[:LISTED])) + (f" and {len(sites) - LISTED} more" if len(sites) > LISTED else "")
