"""Personalised and decentralised methods: what is sent and remembered, and sites that are missing or forget."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.config import RunConfig
from edelweiss.datasets import load_site
from edelweiss.federation import Site
from edelweiss.strategies import ALGORITHMS
from edelweiss.strategies.decentralised import Decentralised
from edelweiss.strategies.dispfl import unpacked
from tests.problems.example import make
from tests.reference.games import RegressionGame
from tests.strategies.halves import Arrays, drive, parted, regression_oracles
from tests.strategies.personalised import DECENTRALISED, LAYERS, PRIMAL, SPLIT, run, setting
from tests.strategies.settings import K

# ---------------------------------------------------------------------- what is sent


@pytest.mark.parametrize("strategy", DECENTRALISED, ids=lambda s: s.name)
@pytest.mark.parametrize("topology", ["ring", "star", "random"])
def test_a_worker_is_sent_only_what_its_neighbours_vectors_give(strategy: Decentralised, topology: str) -> None:
    """Whatever strangers have, its message stays the same, to the bit; whatever a neighbour has, it does not."""
    sites = 7
    start, oracles = {"x": torch.randn(PRIMAL, dtype=torch.float64)}, None
    for mixing in ("server", "client"):
        half = replace(strategy, topology=topology, mean_degree=2.0, mixing=mixing)
        game = RegressionGame(sites, primal=PRIMAL)
        oracles = parted(regression_oracles(game), start, SPLIT, LAYERS)
        [*_, state] = drive(half, start, oracles, 3, sites)
        context = half.context(4, 5, "train", sites)
        adjacent = half._row(state, sites, 0).keys() - {0}
        assert 0 < len(adjacent) < sites - 1 or topology == "star"
        for site in range(sites):
            mine = half._row(state, sites, site).keys()
            before = half.broadcast(state, context, Site(site, "", site + 1))
            for other in range(sites):
                changed = {f"{name}-{other}": vector for name in half.shares for vector in [state[f"{name}-{other}"]]}
                name = f"{half.shares[-1]}-{other}"
                changed[name] = changed[name] + 1
                after = half.broadcast(state | changed, context, Site(site, "", site + 1))
                equal = before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
                told = other in mine and (mixing == "server" or other != site)
                assert equal != told, (site, other, mixing)
            if mixing == "client":
                expected = {f"{name}-{j}" for name in half.shares for j in mine} | {"weights"}
                assert set(before) == expected
                assert not any(before[f"{name}-{site}"].numel() for name in half.shares), "its own it has"


@pytest.mark.slow
@pytest.mark.parametrize("mixing", ["server", "client"])
@pytest.mark.parametrize("algorithm", ["d-psgd", "deprl", "dispfl"])
def test_each_message_of_a_run_is_made_of_the_neighbours_last_answers(
    algorithm: str, mixing: str, tmp_path: Path
) -> None:
    """Read off the wire, the last evaluation too: on a ring of five everybody has two strangers."""
    sites, rounds = 5, 3
    grid, _ = run(tmp_path, algorithm, sites=sites, rounds=rounds, own_mixing=mixing)
    down, up = ([(k, arrays) for way, k, arrays in grid.seen if way == wanted and arrays] for wanted in ("down", "up"))
    assert len(down) == sites * (rounds + 1), "the last evaluation asks everybody once"
    assert len(up) == sites * rounds
    answers = dict(up[:sites])
    start = next(iter(down[0][1]))
    assert all(set(arrays) == {start} and torch.equal(arrays[start], down[0][1][start]) for _, arrays in down[:sites])
    for r in range(1, rounds + 1):
        for k, sent in down[sites * r : sites * (r + 1)]:
            near = sorted({(k - 1) % sites, k, (k + 1) % sites})
            if mixing == "client":
                assert sent.pop("weights").tolist() == pytest.approx([1 / 3] * 3)
                whole = {f"{name}-{j}": answers[j][name] for j in near for name in answers[j]}
                expected = {name: vector[:0] if name.endswith(f"-{k}") else vector for name, vector in whole.items()}
            elif algorithm == "dispfl":
                masks = [unpacked(answers[j]["mask"], torch.device("cpu")) for j in near]
                total, own = torch.zeros(len(masks[0])), masks[near.index(k)]
                for j, mask in zip(near, masks, strict=True):
                    total[mask] += answers[j]["values"]
                expected = {"mask": answers[k]["mask"], "values": (total / torch.stack(masks).sum(0))[own]}
            else:
                expected = {name: torch.stack([answers[j][name] for j in near]).mean(0) for name in answers[k]}
            assert sent.keys() == expected.keys()
            assert all(torch.allclose(sent[name], expected[name], rtol=0, atol=1e-6) for name in sent), (r, k)
        answers = dict(up[sites * r : sites * (r + 1)])


def entries(vector: torch.Tensor) -> set[int]:
    """Return the bits of the numbers in a vector, zeros aside."""
    return set(vector[vector != 0].float().numpy().view(np.uint32).tolist())


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("deprl", {}),
        ("deprl", {"own_mixing": "client"}),
        ("deprl", {"head": "body.3"}),
        ("deprl", {"problem": "cross-entropy"}),
        ("fedrep", {}),
        ("fedrep", {"problem": "auprc"}),
        ("fedrod", {"problem": "cross-entropy"}),
    ],
    ids=str,
)
def test_heads_never_leave_the_site(algorithm: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """No number of a trained head is in any message, or in any file of the run; nor is there room for one."""
    grid, result = run(tmp_path, algorithm, thin_share=0.1, **keys)
    own = set().union(*map(entries, grid.heads))
    assert len(own) > 4 * 3 * 5, "four heads of at least five numbers, after three rounds"
    bodies = 0
    for way, site, arrays in grid.seen:
        for name, vector in arrays.items():
            assert not entries(vector) & own, (way, site, name)
        bodies += "body" in arrays
        if algorithm != "fedrod":
            assert all(name.partition("-")[0] in ("body", "weights") for name in arrays)
    d, head = len(result.arrays["x"]), len(grid.heads[0])
    if algorithm != "fedrod":
        sizes = {v.numel() for _, _, arrays in grid.seen for n, v in arrays.items() if n != "weights"}
        assert sizes - {0} == {d - head}, "bodies, whole, and nothing else"
    for path in (tmp_path / "runs").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            pairs = {
                h.numpy()[i : i + 2].tobytes() for h in grid.heads for i in range(len(h) - 1) if h[i : i + 2].all()
            }
            assert not any(pair in data for pair in pairs), path


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    ["d-psgd", pytest.param("deprl", marks=pytest.mark.slow), pytest.param("dispfl", marks=pytest.mark.slow)],
)
def test_it_makes_no_difference_who_mixes(algorithm: str, tmp_path: Path) -> None:
    """To the bit, through messages, memories and the last evaluation; but more bytes come down."""
    runs = [run(tmp_path, algorithm, own_mixing=mixing, seed=3) for mixing in ("server", "client")]
    (server, one), (client, other) = runs
    assert [record["sites"] for record in one.metrics] == [record["sites"] for record in other.metrics]
    assert all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)
    ups = [[a for way, _, a in grid.seen if way == "up" and a] for grid in (server, client)]
    assert len(ups[0]) == len(ups[1]) == 16
    for first, second in zip(*ups, strict=True):
        assert all(torch.equal(first[name], second[name]) for name in first)
    down, more = (record["bytes-down"] for record in (one.metrics[-1], other.metrics[-1]))
    assert 1.8 * down < more < 2.3 * down


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["d-psgd", "deprl", "fedrep", "ditto", "fedrod"])
def test_the_bytes_of_a_round_are_those_of_the_vectors(algorithm: str, tmp_path: Path) -> None:
    _, result = run(tmp_path, algorithm, problem="cross-entropy")
    head = 4 * 2 + 2
    d = len(result.arrays["x"])
    sent = d if algorithm in ("d-psgd", "ditto", "fedrod") else d - head
    assert all(record["bytes-down"] == record["bytes-up"] == 4 * 4 * sent for record in result.metrics)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["deprl", "fedrep"])
def test_the_gradients_of_epochs_are_those_of_their_batches(algorithm: str, tmp_path: Path) -> None:
    """Two passes over the samples of a site for the head, and one step on the body; then one pass for the body."""
    for units, passes in (({"own_head_unit": "epochs"}, 2), ({"own_body_unit": "epochs"}, 1)):
        grid, result = run(tmp_path, algorithm, **units, batch_size=16, rounds=2)
        rows = [len(load_site(grid.config.data(), k, 4).train) for k in range(4)]
        steps = 1 if passes == 2 else 2
        for record in result.metrics:
            wanted = {f"site-{k}": passes * math.ceil(n / 16) + steps for k, n in enumerate(rows)}
            assert record["site-gradients"] == wanted
            assert record["gradients"] == sum(wanted.values())
            assert record["samples"] == passes * sum(rows) + 4 * steps * 16


@pytest.mark.slow
def test_the_bytes_of_dispfl_are_values_and_bits(tmp_path: Path) -> None:
    _, result = run(tmp_path, "dispfl", own_density=0.25)
    d, weights = len(result.arrays["x"]), 30 * 4 + 4 * 4 + 4
    kept = (d - weights) + 0.25 * weights
    for record in result.metrics:
        assert record["bytes-up"] == pytest.approx(4 * (4 * kept + d // 8 + 1), abs=4 * 4 * 2)  # rounded in each layer
    assert result.metrics[0]["bytes-down"] == 4 * 4 * d
    assert result.metrics[2]["bytes-down"] == result.metrics[1]["bytes-up"]


@pytest.mark.slow
def test_the_consensus_error_is_that_of_what_workers_begin_with(tmp_path: Path) -> None:
    for algorithm in ("d-psgd", "deprl", "dispfl"):
        grid, result = run(tmp_path, algorithm, rounds=3)
        strategy = RunConfig.parse({"algorithm": algorithm}).strategy
        assert isinstance(strategy, Decentralised)
        for r in (1, 2):
            downs = [arrays for way, _, arrays in grid.seen if way == "down" and arrays][4 * r : 4 * r + 4]
            x = np.stack([strategy.whole(arrays).double().numpy() for arrays in downs])
            error = np.square(x - x.mean(0)).sum(1).mean()
            assert result.metrics[r - 1]["consensus-error"] == pytest.approx(error, rel=1e-5)
            assert error > 0
        assert result.metrics[0]["spectral-gap"] == pytest.approx(2 / 3)
    _, full = run(tmp_path, "d-psgd", own_topology="full")
    assert full.metrics[-1]["consensus-error"] == 0
    assert full.metrics[-1]["spectral-gap"] == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["d-psgd", "deprl", "fedrep"])
def test_new_sites_get_the_mean_body_and_the_first_head(algorithm: str, tmp_path: Path) -> None:
    grid, result = run(tmp_path, algorithm)
    problem = make("auc", model="mlp", hidden=4, shape=(30,), seed=0, dtype=torch.float32)
    first, split = problem.initial()["x"], problem.head
    answers = [arrays for way, _, arrays in grid.seen if way == "up" and arrays][-4:]
    bodies = [next(iter(arrays.values()))[:split] for arrays in answers]
    np.testing.assert_allclose(result.arrays["x"][:split], torch.stack(bodies).mean(0).numpy(), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(result.arrays["x"][split:], first[split:].numpy())


# ---------------------------------------------------------------------- sites that are missing, or forget


@pytest.mark.parametrize("strategy", DECENTRALISED, ids=lambda s: s.name)
def test_a_worker_stands_in_for_a_neighbour_that_has_never_answered(strategy: Decentralised) -> None:
    """W_ii grows by W_ij, so that the weights still sum to 1; who never answered is sent the start."""
    _, _, _, start, oracles = setting("minimisation")
    for mixing in ("server", "client"):
        half = replace(strategy, mixing=mixing)
        [state] = drive(half, start, oracles, 1, K, silent={(1, 1)})
        context = half.context(2, 3, "train", K)
        row = half._row(state, K, 0)
        assert {j: weight for j, (weight, _) in row.items()} == pytest.approx({0: 2 / 3, 3: 1 / 3})
        sent = half.broadcast(state, context, Site(1, "", 2))
        assert set(sent) == {"body" if half.name == "deprl" else "x"}
        assert torch.equal(*(v[: len(sent[n])] for n, v in [*sent.items(), *[(n, start["x"]) for n in sent]]))


@pytest.mark.parametrize("strategy", DECENTRALISED, ids=lambda s: s.name)
def test_the_last_answer_stands_for_one_that_is_missing(strategy: Decentralised) -> None:
    _, _, _, start, oracles = setting("minimisation")
    states = drive(strategy, start, oracles, 2, K, silent={(2, 1)})
    for name in strategy.shares:
        assert torch.equal(states[0][f"{name}-1"], states[1][f"{name}-1"])
    assert any(not torch.equal(states[0][f"{n}-2"], states[1][f"{n}-2"]) for n in strategy.shares)


@pytest.mark.parametrize("strategy", DECENTRALISED, ids=lambda s: s.name)
def test_who_lost_its_part_of_the_mix_takes_that_of_its_neighbours(strategy: Decentralised) -> None:
    _, _, _, start, oracles = setting("minimisation")
    half = replace(strategy, mixing="client")
    [*_, state] = drive(half, start, oracles, 2, K)
    sent = half.broadcast(state, half.context(3, 3, "train", K), Site(0, "", 1))
    vectors = half._vectors
    alone = half.mix({j: (0.5, vectors(state, j)) for j in (1, 3)}, -1)
    got = half.received(sent, {})
    assert all(torch.allclose(got[name], alone[name], rtol=0, atol=1e-12) for name in alone)
    reply, memory = half.local_update(sent, {}, oracles(0, 3), half.context(3, 3, "train", K))
    assert all(vector.isfinite().all() for vector in reply.values())
    assert set(half.shares) <= set(memory)
    if half.name == "dispfl":
        x = half.personal(sent, {}, dict)["x"]
        one, other = (half.whole(vectors(state, j)) for j in (1, 3))
        masks = [unpacked(state[f"mask-{j}"], torch.device("cpu")) for j in (1, 3)]
        assert torch.allclose(x, (one + other) / torch.stack(masks).sum(0).clamp(min=1), rtol=0, atol=1e-12)
        mask = unpacked(reply["mask"], torch.device("cpu"))
        assert int(mask.sum()) == len(vectors(state, 0)["values"]), "no denser than before"


@pytest.mark.parametrize("algorithm", ["deprl", "fedrep"])
def test_a_site_that_lost_its_head_begins_with_its_first_one(algorithm: str) -> None:
    _, _, _, start, oracles = setting("regression")
    strategy = ALGORITHMS[algorithm]()
    body = torch.zeros(SPLIT, dtype=torch.float64)
    for k in range(K):
        model = strategy.personal({"body": body}, {}, oracles(k, 1).fresh)
        assert torch.equal(model["x"], torch.cat([body, oracles(k, 1).fresh()["head"]]))
        assert torch.equal(model["y"], start["y"])


def test_the_memory_of_a_site_is_its_head_and_its_y(tmp_path: Path) -> None:
    """And nothing that the server has anyway."""
    for algorithm, names in [
        ("d-psgd", {"y"}),
        ("deprl", {"head", "y"}),
        ("dispfl", {"y"}),
        ("fedrep", {"head", "y"}),
        ("ditto", {"x", "y"}),
    ]:
        _, _, _, start, oracles = setting("regression")
        memories: list[dict[int, Arrays]] = []
        drive(ALGORITHMS[algorithm](), start, oracles, 2, K, memories=memories)
        assert all(set(memory) == names for memory in memories[-1].values()), algorithm
