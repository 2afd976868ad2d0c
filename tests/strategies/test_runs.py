"""Whole runs in the local engine: what `output` returns, who takes part, and every algorithm on every problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cluster import counted
from edelweiss.config import ConfigError, RunConfig
from edelweiss.config.tables import SHARED, tables
from edelweiss.problems import PROBLEMS
from edelweiss.problems.saddle import saddle_coefficients
from edelweiss.server_app import simulate
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.fitting import fitting
from tests.problems.example import given_saddle
from tests.reference import algorithms as reference
from tests.reference.games import SaddleGame
from tests.said import has
from tests.strategies.engine import Model, run_saddle

SITES, ROUNDS = 3, 5
LOCAL_SGDA = {"algorithm": "local-sgda", "sites": SITES, "saddle.dimension": 4, "local-steps": 2}
STAGES = {"stage-iterations": 4, "stage-decay": 2.0}  # of two rounds each: 1-2, 3-4, 5
CASES: list[dict[str, Any]] = [
    LOCAL_SGDA,
    LOCAL_SGDA | STAGES,
    LOCAL_SGDA | {"algorithm": "codasca", "codasca.lr": 0.05} | STAGES,
]


def iterates(keys: dict[str, Any], rounds: int = ROUNDS) -> list[Model]:
    """Return the model after each round; the last is that of ``output = "last"``."""
    final, path, _ = run_saddle(keys | {"rounds": rounds})
    assert len(path) == rounds
    assert all(np.array_equal(final[name], path[-1][name]) for name in ("x", "y"))
    return path


@pytest.mark.parametrize("keys", CASES, ids=["one-stage", "stages", "codasca"])
def test_a_shorter_run_is_the_beginning_of_a_longer_one(keys: dict[str, Any]) -> None:
    long, short = iterates(keys), iterates(keys, ROUNDS - 2)
    for one, other in zip(long, short, strict=False):
        np.testing.assert_array_equal(one["x"], other["x"])
        np.testing.assert_array_equal(one["y"], other["y"])
    assert not np.array_equal(long[-1]["x"], short[-1]["x"])


@pytest.mark.parametrize(
    ("keys", "rounds", "first"), [(CASES[0], 5, 1), (CASES[1], 4, 3), (CASES[2], 2, 1), (CASES[1], 5, 5)]
)
def test_average_is_the_mean_of_the_last_stages_iterates(keys: dict[str, Any], rounds: int, first: int) -> None:
    stage = iterates(keys, rounds)[first - 1 :]
    average, _, _ = run_saddle(keys | {"rounds": rounds, "output": "average"})
    for name in ("x", "y"):
        np.testing.assert_allclose(average[name], np.mean([model[name] for model in stage], axis=0), rtol=1e-5)
    assert (len(stage) == 1) == np.array_equal(average["x"], stage[-1]["x"])


@pytest.mark.slow
def test_random_returns_the_model_of_one_round_which_the_seed_chooses() -> None:
    drawn = []
    for seed in range(8):
        keys = LOCAL_SGDA | {"seed": seed}
        path = iterates(keys)
        chosen, _, _ = run_saddle(keys | {"rounds": ROUNDS, "output": "random"})
        equal = [r for r, model in enumerate(path, 1) if all(np.array_equal(model[n], chosen[n]) for n in ("x", "y"))]
        assert len(equal) == 1, "exactly one round has this model"
        drawn += equal
    again, _, _ = run_saddle(keys | {"rounds": ROUNDS, "output": "random"})
    assert all(np.array_equal(again[name], chosen[name]) for name in ("x", "y"))
    assert len(set(drawn)) >= 3, "uniform over five rounds: eight draws hit two or fewer in one case of 150"


def test_sites_take_part_at_random_in_equal_numbers_and_the_seed_decides() -> None:
    keys = LOCAL_SGDA | {"sites": 6, "fraction": 0.5, "rounds": 8}
    asked = run_saddle(keys | {"seed": 1})[2]
    assert all(len(set(sites)) == 3 and sites == sorted(sites) for sites in asked)
    assert set().union(*asked) == set(range(6)), "nobody is left out for ever"
    assert len({tuple(sites) for sites in asked}) > 1
    assert run_saddle(keys | {"seed": 1})[2] == asked
    assert run_saddle(keys | {"seed": 2})[2] != asked


@pytest.mark.parametrize("weights", [None, [1.0, 4.0, 2.0, 0.5]], ids=["uniform", "weighted"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_codasca_in_the_engine_follows_the_reference(fraction: float, weights: list[float] | None) -> None:
    """Through messages, files and memories on disk, in float32: 7 rounds, three stages."""
    keys = {"algorithm": "codasca", "sites": 4, "rounds": 7, "seed": 3}
    keys |= {"saddle.dimension": 5, "saddle.heterogeneity": 3.0}
    hyper = {"local-steps": 3, "stage-iterations": 9, "stage-decay": 2.0, "fraction": fraction}
    own = {"codasca.lr": 0.03, "codasca.server-lr": 0.8, "codasca.gamma": 0.5}
    _, path, asked = run_saddle({**keys, **hyper, **own}, weights)
    slopes, offsets = saddle_coefficients(4, 5, 3.0, 3)
    start = given_saddle(slopes, offsets, seed=3, dtype=torch.float32).initial()
    expected = reference.codasca(
        SaddleGame(slopes, offsets),
        start["x"].double().numpy(),
        start["y"].double().numpy(),
        reference.plan(7, 3, 9, decay=2),
        0.03,
        0.8,
        0.5,
        weights,
        participants=None if fraction == 1 else asked,
    )
    assert len(asked[0]) == 4 * fraction
    for model, (x, y) in zip(path, expected, strict=True):
        np.testing.assert_allclose(model["x"], x, rtol=0, atol=1e-5)
        np.testing.assert_allclose(model["y"], y, rtol=0, atol=1e-5)


# ---------------------------------------------------------------------- the registry

PAIRS = [(a, p) for a in ALGORITHMS for p in PROBLEMS]
CLAIMED = [(a, p) for a, p in PAIRS if can_solve(ALGORITHMS[a], PROBLEMS[p])]
FIRST_ROUND: dict[str, int] = {  # gradients of a site with three steps, where the card does not hold yet
    "momentum-local-sgda": 4,
    "momentum-local-sgda-plus": 8,
    "fmgda": 7,
    "fgda": 9,
    "adafgda": 9,
    "acc-fcsg-m": 7,
    "cdma": 5,  # one for the direction; the first step needs none
}


NEEDS: dict[str, dict[str, Any]] = {  # what a problem asks of two classes of patients
    "maml": {"maml.ways": 2, "maml.queries": 5, "maml.test-tasks": 10, "partition": "iid"}
}


def test_the_registry_is_indexed_by_the_names_that_the_classes_bear() -> None:
    assert all(algorithm.name == name for name, algorithm in ALGORITHMS.items())
    assert all(problem.name == name for name, problem in PROBLEMS.items())
    assert {a for a, _ in CLAIMED} == set(ALGORITHMS), "every algorithm has a problem"
    assert {p for _, p in CLAIMED} == set(PROBLEMS), "every problem has an algorithm"


QUICK = {(a, next(p for b, p in CLAIMED if a == b)) for a in ALGORITHMS}  # every algorithm
QUICK |= {(next(a for a, q in CLAIMED if p == q), p) for p in PROBLEMS}  # and every problem


PLAIN = ("bce", "cross-entropy")  # their variants differ in the loss alone: one algorithm each is enough
TRIED = [(a, p) for a, p in CLAIMED if (a, p) in QUICK or not p.startswith(PLAIN) or p in PLAIN]


@pytest.mark.parametrize(
    ("algorithm", "problem"), [pytest.param(*p, marks=[] if p in QUICK else pytest.mark.slow) for p in TRIED]
)
def test_every_algorithm_runs_on_every_problem_that_it_claims(algorithm: str, problem: str, tmp_path: Path) -> None:
    result = simulate(
        {
            "algorithm": algorithm,
            "problem": problem,
            "dataset": "breast-cancer",
            "rounds": 1,
            "sites": 2,
            "hidden": 4,
            "local-steps": 1 if algorithm == "npa" else 3,
            "workers": 1,
            "device": "cpu",
            "runs-dir": str(tmp_path),
            **NEEDS.get(problem, {}),
            **fitting(algorithm),
        }
    )
    assert set(result.arrays) - {"buffers"} == ({"x", "y"} if PROBLEMS[problem].kind == "minimax" else {"x"})
    assert all(np.isfinite(vector).all() and vector.dtype == np.float32 for vector in result.arrays.values())
    (record,) = result.metrics
    gradients = FIRST_ROUND.get(algorithm, counted(ALGORITHMS[algorithm].info.gradients, q=3))
    assert record["gradients"] == 2 * gradients
    assert record["site-gradients"] == {f"site-{site}": gradients for site in range(2)}
    assert (record["bytes-up"] > 0) == ALGORITHMS[algorithm].exchanges
    headline = [record[name] for name in ("loss", "auroc", "auprc", "distance-x", "distance-y") if name in record]
    assert headline
    assert np.isfinite(headline).all()


def test_a_pair_that_does_not_fit_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Which pairs those are, and what the message advises, is tested with the run-config."""
    with pytest.raises(ConfigError, check=has("fedavg", "saddle")):
        simulate({"algorithm": "fedavg", "problem": "saddle", "runs-dir": str(tmp_path)})
    assert not list(tmp_path.iterdir())


def test_no_problem_shares_the_name_of_its_table_with_an_algorithm_or_a_key() -> None:
    assert len(tables()) == len(ALGORITHMS) + len(PROBLEMS)
    assert not tables().keys() & (RunConfig.keys().keys() | SHARED.keys())
