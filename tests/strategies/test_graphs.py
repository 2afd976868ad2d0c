"""Mixing graphs: their weights, that they are connected, files of edges, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edelweiss.federation import StrategyError
from edelweiss.strategies.graphs import Graph, mixing_graph
from tests.said import has

DRAWN = [("ring", 8), ("ring", 2), ("random", 12), ("random", 40), ("full", 7), ("star", 6), ("ring", 1), ("full", 1)]


def by_hand(edges: set[tuple[int, int]], sites: int) -> np.ndarray:
    """Metropolis-Hastings weights, entry by entry."""
    degree = [sum(i in edge for edge in edges) for i in range(sites)]
    weights = np.zeros((sites, sites))
    for i, j in edges:
        weights[i, j] = weights[j, i] = 1 / (1 + max(degree[i], degree[j]))
    for i in range(sites):
        weights[i, i] = 1 - sum(weights[i])
    return weights


def edges_of(weights: np.ndarray) -> set[tuple[int, int]]:
    return {(int(i), int(j)) for i, j in zip(*np.nonzero(weights), strict=True) if i < j}


@pytest.mark.parametrize(("topology", "sites"), DRAWN)
def test_weights_are_symmetric_doubly_stochastic_and_those_of_the_edges(topology: str, sites: int) -> None:
    graph = mixing_graph(topology, sites)
    weights = graph.matrix()
    assert weights.shape == (sites, sites)
    np.testing.assert_array_equal(weights, weights.T)
    np.testing.assert_allclose(weights.sum(0), 1, rtol=0, atol=1e-12)
    assert (weights >= 0).all()
    assert (weights.diagonal() > 0).all()
    np.testing.assert_allclose(weights, by_hand(edges_of(weights), sites), rtol=0, atol=1e-12)
    assert (np.linalg.matrix_power(weights, sites) > 0).all(), "a path leads from each to each"
    for site in range(sites):
        assert graph.row(site) == [(j, w) for j, w in enumerate(weights[site]) if w]


def test_who_is_whose_neighbour() -> None:
    assert edges_of(mixing_graph("ring", 5).matrix()) == {(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)}
    assert edges_of(mixing_graph("star", 4).matrix()) == {(0, 1), (0, 2), (0, 3)}
    np.testing.assert_allclose(mixing_graph("full", 5).matrix(), 1 / 5, rtol=0, atol=1e-15)
    assert mixing_graph("ring", 5).row(0) == [(j, pytest.approx(1 / 3)) for j in (0, 1, 4)]
    assert [j for j, _ in mixing_graph("star", 4).row(2)] == [0, 2]


def test_what_is_kept_of_a_graph_grows_with_its_edges() -> None:
    """And with nothing else: no matrix of all pairs stays for the run."""
    few, many = mixing_graph("ring", 50), mixing_graph("ring", 500)
    _ = few.gap, many.gap

    def kept(graph: Graph) -> int:
        return sum(value.nbytes for value in vars(graph).values() if isinstance(value, np.ndarray))

    assert 8 * 500 * 3 <= kept(many) <= 10 * kept(few)


@pytest.mark.parametrize("degree", [2.0, 3.5, 6.0])
def test_random_graphs_have_the_wanted_degree_and_follow_the_seed(degree: float) -> None:
    graphs = []
    for seed in (0, 0, 1):
        mixing_graph.cache_clear()
        graphs.append(edges_of(mixing_graph("random", 20, seed, degree).matrix()))
    assert [2 * len(edges) / 20 for edges in graphs] == [degree] * 3
    assert graphs[0] == graphs[1] != graphs[2]


def test_each_round_may_have_a_random_graph_of_its_own() -> None:
    """By the seed and the round; the others are what they are."""
    drawn = {}
    for seed, number in ((0, 0), (0, 1), (0, 2), (1, 1)):
        graph = edges_of(mixing_graph("random", 20, seed, 3.0, drawn=number).matrix())
        mixing_graph.cache_clear()
        assert graph == edges_of(mixing_graph("random", 20, seed, 3.0, drawn=number).matrix())
        drawn[seed, number] = frozenset(graph)
    assert len(set(drawn.values())) == len(drawn)
    assert drawn[0, 0] == edges_of(mixing_graph("random", 20, 0, 3.0).matrix())
    np.testing.assert_array_equal(mixing_graph("ring", 5, drawn=3).matrix(), mixing_graph("ring", 5).matrix())


def test_random_graphs_at_their_limits() -> None:
    assert len(edges_of(mixing_graph("random", 10, mean_degree=1.8).matrix())) == 9, "a tree"
    np.testing.assert_array_equal(mixing_graph("random", 5, mean_degree=9.0).matrix(), mixing_graph("full", 5).matrix())
    with pytest.raises(StrategyError, check=has(key="mean-degree", value=1, allowed=1.8)):
        mixing_graph("random", 10, mean_degree=1.0)


def test_the_spectral_gap(tmp_path: Path) -> None:
    """Of a ring of n with weights 1/3: λ_k = (1 + 2 cos(2πk/n)) / 3; of a full graph 1."""
    for sites in (5, 8):
        values = sorted(abs((1 + 2 * np.cos(2 * np.pi * k / sites)) / 3) for k in range(sites))
        assert mixing_graph("ring", sites).gap == pytest.approx(1 - values[-2], abs=1e-12)
    assert mixing_graph("full", 6).gap == pytest.approx(1, abs=1e-12)
    crossing = tmp_path / "crossing.csv"  # each of three with each of three others: λ_K = -1/2, and λ₂ = 1/4
    crossing.write_text("".join(f"{i},{j}\n" for i in range(3) for j in range(3, 6)), encoding="utf-8")
    assert mixing_graph("file", 6, file=str(crossing)).gap == pytest.approx(1 / 2, abs=1e-12)
    assert mixing_graph("full", 1).gap == 1
    assert 0 < mixing_graph("ring", 30).gap < mixing_graph("ring", 6).gap


FILES = {
    "plain.csv": "0,1\n1,2\n\n1, 3\n",
    "named.csv": "from,to\n0,1\n2,1\n3,1\n1,3\n",  # the last says what the one before it says
    "edges.toml": "edges = [[0, 1], [1, 2], [3, 1]]\n",
}


@pytest.mark.parametrize("name", FILES)
def test_edges_from_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    weights = mixing_graph("file", 4, file=str(tmp_path / name)).matrix()
    np.testing.assert_allclose(weights, by_hand({(0, 1), (1, 2), (1, 3)}, 4), rtol=0, atol=1e-12)


REFUSED = {
    "components.csv": ("0,1\n2,3\n", [[0, 1], [2, 3], [4]]),
    "beyond.csv": ("0,1\n1,2\n2,3\n3,4\n4,7\n", [7]),
    "few.toml": ("edges = [[0, 1], [1, 2]]", [[0, 1, 2], [3], [4]]),
    "loop.csv": ("0,1\n1,1\n", [1, 1]),
    "three.csv": ("0,1,2\n", [0, 1, 2]),
    "negative.csv": ("0,-1\n", [0, -1]),
    "words.csv": ("0,1\nnorth,south\n", "north"),
    "other.toml": ("nodes = 3", "edges"),
    "broken.toml": ("edges = [[0,", "broken.toml"),
    "weights.toml": ("edges = [[0, 1], [1, 2]]\nweights = [1, 2]", ["weights"]),
    "underscore.csv": ("0,1\n1,0_2\n", "'0_2'"),
    "first.csv": ("0_2,1\n1,0\n", "'0_2'"),
    "script.csv": ("0,1\n1,２\n", "'２'"),
    "float.toml": ("edges = [[0.5, 1]]", [0.5, 1]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_no_graph_of_the_sites_are_refused(name: str, tmp_path: Path) -> None:
    (text, value), file = REFUSED[name], str(tmp_path / name)
    (tmp_path / name).write_text(text, encoding="utf-8")
    named, value = ([value], file) if isinstance(value, str) else ([], value)
    with pytest.raises(StrategyError, check=has(f"graph-file = '{file}'", *named, key="graph-file", value=value)):
        mixing_graph("file", 5, file=file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StrategyError, check=has(key="graph-file", value=str(tmp_path / "none.csv"))):
        mixing_graph("file", 5, file=str(tmp_path / "none.csv"))
