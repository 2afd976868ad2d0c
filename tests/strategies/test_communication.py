"""What every algorithm sends, to the byte, as its paper says; and keys that mean the same for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.config import ConfigError, RunConfig
from edelweiss.federation import FederatedStrategy, Oracle, RoundContext, Site
from edelweiss.problems import PROBLEMS
from edelweiss.problems.capabilities import Layers
from edelweiss.server_app import simulate
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.fitting import fitting
from tests.said import has
from tests.server_app.sites import MARKED
from tests.strategies.closed_form import build, objective
from tests.strategies.engine import run_saddle
from tests.strategies.halves import Arrays, OpenOracle, drive

# ---------------------------------------------------------------------- bytes

# A line per exchange, "down > up". Rounds 1-3 are one stage, 4-6 another. Numbers are rounds, "else" all others.
Exchanges = list[str]
RECURSIVE: dict[int | str, Exchanges] = {1: ["x y > x y u v"], "else": ["x y u v > x y u v"]}
PROXIMAL = {1: ["x y > x y"], 4: ["x y > x y"], "else": ["x y x_ref > x y"], 3: ["x y x_ref > x_mean y_mean count"]}
PROXIMAL[6] = PROXIMAL[3]
# S = q² = 2 rounds, from the start of each stage: the snapshot differs from x in its second round.
SNAPSHOT: dict[int | str, Exchanges] = {"else": ["x y > x y"], 2: ["x y snapshot > x y"], 5: ["x y snapshot > x y"]}
MOMENTUM = "x y dx dy > x y dx dy"
# Of an algorithm whose rounds are all alike its table is enough (tests/docs); DisPFL's bits are counted in
# test_personalised_messages.py.
ROWS: dict[str, dict[int | str, Exchanges]] = {
    "alone": {"else": ["x y > "]},  # the common start, for whoever has nothing yet
    "local-sgda": {"else": ["x y > x y"]},
    "npa": {"else": ["x y > x y"]},
    "fess-gda": {"else": ["x y > x y"]},
    "local-sgda-plus": SNAPSHOT,
    "momentum-local-sgda": {1: ["x y > x y dx dy"], "else": [MOMENTUM]},
    "momentum-local-sgda-plus": {
        1: ["x y > x y dx dy"],
        2: ["x y dx dy snapshot > x y dx dy"],
        5: ["x y dx dy snapshot > x y dx dy"],
        "else": [MOMENTUM],
    },
    "coda-plus": PROXIMAL,  # at the end of a stage the averages, in place of the iterates
    "coda": PROXIMAL | {r: [*PROXIMAL[r], "x > sums counts"] for r in (3, 6)},
    "codasca": {
        1: ["x y > x y cx cy"],  # at the start of a stage cx and cy are zero and x_ref is x
        4: ["x y > x y cx cy"],
        "else": ["x y cx cy x_ref > x y cx cy"],
    },
    "fmgda": RECURSIVE,
    "fgda": RECURSIVE,
    "adafgda": {1: ["x y > u v", "x y a b > x y u v"], "else": ["x y u v a b > x y u v"]},
    "sagda": {"else": ["x y > ux uy", "x y vx vy > x y"]},
    "fedgda-gt": {"else": ["x y > ux uy", "vx vy > x y"]},
    "cdma": {1: ["x y > du dv", "x y u v > x y"], "else": ["x y x_prev y_prev > du dv", "x y u v > x y"]},
    "d-psgd": {"else": ["x > x"]},
    "deprl": {"else": ["body > body"]},
    "fedrep": {"else": ["body > body"]},
    "ditto": {"else": ["x y > x y"]},
    "fednest": {"else": ["x y > hy", "x y hy > y", "x y > hx", "x y hx > x"]},
}
PRIMAL = {"x", "x_ref", "x_mean", "x_prev", "snapshot", "cx", "u", "dx", "a", "ux", "vx", "du", "hx"}
HEAD = 3 + 1 + 2  # weights of three units, bias, a and b
DUAL = {"y", "y_mean", "y_prev", "cy", "v", "dy", "b", "uy", "vy", "dv", "hy"}


def numbers(names: str, x: int, y: int) -> int:
    """Return how many numbers these arrays hold; the sums and counts of AUC's dual are two each.

    A count is an integer of eight bytes, as two numbers.
    """
    known = {**dict.fromkeys(PRIMAL, x), **dict.fromkeys(DUAL, y), "sums": 2, "counts": 2, "count": 2, "body": x - HEAD}
    return sum(known[name] for name in names.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_bytes_down_and_up_are_those_of_the_paper(name: str, tmp_path: Path) -> None:
    sites, q = 2, 1 if name == "npa" else 2
    keys: dict[str, Any] = {"algorithm": name, "problem": "auc", "model": "linear", "sites": sites, "rounds": 6}
    keys |= {"local-steps": q, "stage-iterations": 3 * q, "workers": 1, "device": "cpu", "runs-dir": str(tmp_path)}
    keys |= {"evaluate-every": 0, "central-test": False}
    x, y = 30 + 1 + 2, 1  # weights, bias, a and b; α
    if Layers in ALGORITHMS[name].needs:
        keys |= {"model": "mlp", "hidden": 3}
        x = 30 * 3 + 3 + 3 * 3 + 3 + HEAD
    result = simulate(keys)
    assert [len(result.arrays[n]) for n in ("x", "y")] == [x, y]
    for r, record in enumerate(result.metrics, 1):
        pairs = [exchange.split(" >") for exchange in ROWS[name].get(r, ROWS[name]["else"])]
        assert record["bytes-down"] == 4 * sites * sum(numbers(down, x, y) for down, _ in pairs), f"down in round {r}"
        assert record["bytes-up"] == 4 * sites * sum(numbers(up, x, y) for _, up in pairs), f"up in round {r}"


def test_with_fresh_gradients_only_cdma_does_not_send_the_previous_point(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"algorithm": "cdma", "problem": "saddle", "saddle.dimension": 7, "sites": 3, "rounds": 2}
    keys |= {"cdma.alpha": 1.0, "workers": 1, "device": "cpu", "runs-dir": str(tmp_path)}
    assert [record["bytes-down"] for record in simulate(keys).metrics] == [3 * 4 * 7 * (2 + 4)] * 2


def test_fednest_pays_for_each_inner_round(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"algorithm": "fednest", "problem": "saddle", "saddle.dimension": 7, "sites": 3, "rounds": 1}
    keys |= {"workers": 1, "device": "cpu", "runs-dir": str(tmp_path)}
    up = [simulate(keys | {"fednest.inner-rounds": t}).metrics[0]["bytes-up"] for t in (1, 3)]
    assert up == [3 * 4 * 7 * 2 * (t + 1) for t in (1, 3)]


# ---------------------------------------------------------------------- the same keys for all

SITES = 4
MINIMAX = sorted(name for name in ROWS if can_solve(ALGORITHMS[name], PROBLEMS["saddle"]))


def small(name: str) -> dict[str, Any]:
    """Return a short run of an algorithm on a problem that it solves, the cheapest."""
    solved = [p for p in ("saddle", "invariant-logistic", "bce", *PROBLEMS) if can_solve(ALGORITHMS[name], PROBLEMS[p])]
    keys: dict[str, Any] = {"algorithm": name, "problem": solved[0], "model": "linear", "sites": SITES}
    keys |= {f"{closed}.dimension": 5 for closed in ("saddle", "invariant-logistic")}
    keys |= {"local-steps": 1 if name == "npa" else 2, "rounds": 4, "workers": 1, "device": "cpu", "evaluate-every": 0}
    keys |= {"model": "mlp", "hidden": 3} if Layers in ALGORITHMS[name].needs else {}
    if solved[0] == "maml":
        keys |= {"dataset": "digits", "partition": "iid", "batch-size": 2}
        keys |= {"maml.ways": 2, "maml.queries": 2, "maml.test-tasks": 2}
    own = build(name)
    return (
        keys
        | {f"{name}.{f.replace('_', '-')}": getattr(own, f) for f in ("lr", "lr_dual", "rho") if hasattr(own, f)}
        | fitting(name)
    )


def test_who_needs_all_sites_says_so() -> None:
    for name in (name for name in ALGORITHMS if not ALGORITHMS[name].partial):
        with pytest.raises(ConfigError, check=has("fraction = 0.5", name)):
            RunConfig.parse(small(name) | {"fraction": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MINIMAX if ALGORITHMS[name].partial])
def test_half_of_the_sites_do_the_work_of_a_round(name: str) -> None:
    keys = small(name) | {"fraction": 0.5, "rounds": 25, "saddle.heterogeneity": 0.1, "local-steps": 1}
    _, path, asked = run_saddle(keys)
    assert all(len(sites) == SITES / 2 for sites in asked)
    assert set().union(*asked) == set(range(SITES))
    if not ALGORITHMS[name].personalised:
        # The last round of CODA and CODA+ ends with the average of all iterates.
        assert np.square(path[-2]["x"]).sum() < 0.1 * np.square(path[0]["x"]).sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if ALGORITHMS[name].partial and name not in MINIMAX])
def test_a_share_of_the_sites_is_a_share_for_every_algorithm(name: str, tmp_path: Path) -> None:
    result = simulate(small(name) | {"fraction": 0.5, "runs-dir": str(tmp_path)})
    assert all(len(record["site-gradients"]) == SITES / 2 for record in result.metrics)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_equal_weights_are_no_weights(name: str) -> None:
    algorithm = ALGORITHMS[name]
    start, oracles, _ = objective(algorithm, SITES)
    steps = 1 if name == "npa" else 3
    one, other = (drive(build(name, local_steps=steps), start, oracles, 5, SITES, weights=w) for w in (None, [7.0] * 4))
    assert all(torch.allclose(one[-1][n], other[-1][n], rtol=0, atol=1e-10) for n in one[-1])


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if not ALGORITHMS[name].personalised])
def test_a_weight_of_two_is_two_equal_sites(name: str) -> None:
    algorithm = ALGORITHMS[name]
    start, oracles, _ = objective(algorithm, SITES)
    steps, weights = 1 if name == "npa" else 3, [2.0, 1.0, 1.0, 1.0]
    doubled: OpenOracle = lambda site, r: oracles(site % SITES, r)  # noqa: E731
    # CODA's last phase weighs sites by the size of their sums, as its paper does; so stop before it.
    rounds = slice(0, 4 if name == "coda" else 5)
    one = drive(build(name, local_steps=steps), start, oracles, 5, SITES, weights=weights)[rounds]
    twins = drive(build(name, local_steps=steps), start, doubled, 5, SITES + 1)[rounds]
    plain = drive(build(name, local_steps=steps), start, oracles, 5, SITES)[rounds]
    for n in start:
        torch.testing.assert_close(one[-1][n], twins[-1][n], rtol=0, atol=1e-10)
    assert any((one[-1][n] - plain[-1][n]).abs().max() > 1e-6 for n in start), "the weight matters"


def failing(algorithm: type[FederatedStrategy]) -> type[FederatedStrategy]:
    """Return the algorithm, but site 1 breaks down in round 2, whatever the phase."""

    def broadcast(self: Any, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        sent = dict(algorithm.broadcast(self, state, context, site))
        return sent | {"marked": torch.ones(1)} if site.index == 1 and context.round == 2 else sent

    def local_update(
        self: Any, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        if "marked" in sent:
            raise RuntimeError
        return algorithm.local_update(self, sent, memory, oracle, context)

    own = {
        "name": algorithm.name,
        "broadcast": broadcast,
        "local_update": local_update,
        "messages": algorithm.messages + MARKED,
    }
    return type(algorithm.__name__, (algorithm,), own)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_min_replies_a_run_goes_on_without_a_site_that_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, name, failing(ALGORITHMS[name]))
    # CDMA does not wait for more answers than it needs.
    result = simulate(small(name) | {"min-replies": SITES - 1, "seed": 2, "runs-dir": str(tmp_path)})
    assert len(result.metrics) == 4
    assert set(result.metrics[1]["site-gradients"]) == {"site-0", "site-2", "site-3"}
    waits = not ALGORITHMS[name].drops_stragglers
    assert all(len(result.metrics[r]["site-gradients"]) == SITES for r in (0, 2, 3)) or not waits
    assert all(np.isfinite(vector).all() for vector in result.arrays.values())


# Plain averages, stages of their own, phases, control variates, estimators: the loop picks the output for all alike.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["local-sgda", "coda", "coda-plus", "fednest", "codasca", "fgda"])
def test_the_output_is_the_last_the_average_or_one_of_the_rounds(name: str) -> None:
    last, path, _ = run_saddle(small(name))
    assert len(path) == 4
    average, random = (run_saddle(small(name) | {"output": output})[0] for output in ("average", "random"))
    for n in ("x", "y"):
        assert np.array_equal(last[n], path[-1][n])
        np.testing.assert_allclose(average[n], np.mean([model[n] for model in path], axis=0), rtol=0, atol=1e-5)
        assert any(np.array_equal(random[n], model[n]) for model in path)
