"""Server and client halves against the NumPy simulations of tests/reference, to 1e-9, over three stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from strategies.coda_plus import CodaPlus
from strategies.codasca import Codasca
from strategies.fedavg import FedAvg
from strategies.local_sgda import LocalSGDA
from tests.reference import algorithms as reference
from tests.reference.games import Game, RegressionGame, SaddleGame, Vector
from tests.strategies.halves import Arrays, OpenOracle, drive, regression_oracles, saddle_oracles

K, ROUNDS = 4, 8
# Stages of 3 rounds of 3 steps, 3 rounds of 6 steps, and what is left: 2 rounds of 12 steps.
STAGES: dict[str, Any] = {
    "local_steps": 3,
    "stage_iterations": 9,
    "stage_decay": 2.0,
    "stage_growth": 2.0,
    "stage_steps_growth": 2.0,
}
PLAN = reference.plan(ROUNDS, 3, 9, decay=2, growth=2, steps_growth=2)
WEIGHTS = [1.0, 5.0, 2.0, 0.5]
# Clients 2 and 3 miss the first round of stage 2, client 0 of stage 3; nobody takes part in all.
SOME = [(0, 1), (2, 3), (0, 2), (0, 1), (1, 3), (0, 2), (1, 2), (0, 3)]

GAMES = ["saddle", "regression", "regression-clipped"]


def setting(name: str) -> tuple[Game, Vector, Vector, OpenOracle]:
    """Return a game, a starting point, and the product's oracles of the same objective."""
    if name == "saddle":
        random = np.random.default_rng(5)
        slopes, offsets = random.uniform(0, 2, K), random.normal(0, 3, (K, 6))
        return (
            SaddleGame(slopes, offsets),
            random.normal(size=6),
            random.normal(size=6),
            saddle_oracles(slopes, offsets),
        )
    game = RegressionGame(K, clip=name.endswith("clipped"))
    return game, game.x, game.y, regression_oracles(game)


def torched(x: Vector, y: Vector | None = None) -> Arrays:
    return {"x": torch.from_numpy(x.copy())} | ({} if y is None else {"y": torch.from_numpy(y.copy())})


def both_ways(*arguments: Any, **options: Any) -> list[Arrays]:
    """Drive a strategy with its vectors handed over as they are, and packed and unpacked: the same bits."""
    direct, packed = drive(*arguments, **options), drive(*arguments, **options, wire=True)
    for one, other in zip(direct, packed, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    return direct


def agree(states: Sequence[Arrays], history: Sequence[reference.Point]) -> None:
    assert len(states) == len(history) == ROUNDS
    for r, (state, (x, y)) in enumerate(zip(states, history, strict=True), 1):
        np.testing.assert_allclose(state["x"].numpy(), x, rtol=0, atol=1e-9, err_msg=f"x after round {r}")
        np.testing.assert_allclose(state["y"].numpy(), y, rtol=0, atol=1e-9, err_msg=f"y after round {r}")
    # Neither side stood still, and nothing overflowed: the comparison means something.
    moved = [np.abs(after[0] - before[0]).max() for before, after in pairwise(history)]
    assert min(moved) > 1e-6
    assert np.isfinite(history[-1][0]).all()


def test_the_plan_has_three_stages_of_several_rounds_each() -> None:
    assert [(stage.rounds, stage.steps) for stage in PLAN] == [([1, 2, 3], 3), ([4, 5, 6], 6), ([7, 8], 12)]
    for stage in PLAN:
        for r in stage.rounds:
            turn = FedAvg(**STAGES).turn(r, ROUNDS, "train", K)
            assert (turn.rate, turn.local_steps) == (stage.shrink, stage.steps)
            assert (turn.starts_stage, turn.ends_stage) == (r == stage.rounds[0], r == stage.rounds[-1])


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
@pytest.mark.parametrize("some", [None, SOME], ids=["all", "some"])
def test_fedavg(some: list[tuple[int, int]] | None, weights: list[float] | None) -> None:
    game = RegressionGame(K)
    fraction = 1.0 if some is None else 0.5
    strategy = FedAvg(**STAGES, lr=0.05, fraction=fraction)
    states = both_ways(
        strategy, torched(game.x), regression_oracles(game), ROUNDS, K, weights=weights, participants=some
    )
    expected = reference.fedavg(game, game.x, PLAN, 0.05, weights, some)
    for state, x in zip(states, expected, strict=True):
        np.testing.assert_allclose(state["x"].numpy(), x, rtol=0, atol=1e-9)
    assert np.abs(expected[-1] - expected[-2]).max() > 1e-6


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
@pytest.mark.parametrize("some", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("name", GAMES)
def test_local_sgda(name: str, some: list[tuple[int, int]] | None, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    strategy = LocalSGDA(**STAGES, lr=0.03, lr_dual=0.08, fraction=1.0 if some is None else 0.5)
    states = both_ways(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some)
    agree(states, reference.local_sgda(game, x, y, PLAN, 0.03, 0.08, weights, some))


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
@pytest.mark.parametrize("some", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("gamma", [0.0, 0.7])
@pytest.mark.parametrize("name", GAMES)
def test_coda_plus(name: str, gamma: float, some: list[tuple[int, int]] | None, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    strategy = CodaPlus(**STAGES, lr=0.04, gamma=gamma, fraction=1.0 if some is None else 0.5)
    states = both_ways(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some)
    agree(states, reference.coda_plus(game, x, y, PLAN, 0.04, gamma, weights, some))


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
@pytest.mark.parametrize("some", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize(("gamma", "server_lr"), [(0.0, 1.4), (0.7, 1.0)])
@pytest.mark.parametrize("name", GAMES)
def test_codasca(
    name: str,
    gamma: float,
    server_lr: float,
    some: list[tuple[int, int]] | None,
    weights: list[float] | None,
) -> None:
    game, x, y, oracles = setting(name)
    fraction = 1.0 if some is None else 0.5
    strategy = Codasca(**STAGES, lr=0.04, server_lr=server_lr, gamma=gamma, fraction=fraction)
    states = both_ways(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some)
    agree(states, reference.codasca(game, x, y, PLAN, 0.04, server_lr, gamma, weights, some))


@pytest.mark.parametrize("lost", [{(2, 1)}, {(3, 0), (5, 2), (8, 3)}])
def test_codasca_goes_on_from_zero_where_a_client_lost_its_memory(lost: set[tuple[int, int]]) -> None:
    game, x, y, oracles = setting("regression")
    strategy = Codasca(**STAGES, lr=0.04, gamma=0.2)
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, lost=lost)
    agree(states, reference.codasca(game, x, y, PLAN, 0.04, 1.0, 0.2, lost=lost))
    undisturbed = drive(strategy, torched(x, y), oracles, ROUNDS, K)
    assert (states[-1]["x"] - undisturbed[-1]["x"]).abs().max() > 1e-6


def test_codasca_counts_a_client_that_was_asked_and_did_not_answer_as_absent() -> None:
    """The change of c is 1/K of the sum over those who answered, not over those who were drawn."""
    game, x, y, oracles = setting("regression")
    strategy = Codasca(**STAGES, lr=0.04, gamma=0.2, fraction=0.75)
    asked = [(0, 1, 2), (1, 2, 3), (0, 2, 3), (0, 1, 3)] * 2
    silent = {(2, 1), (3, 0), (5, 2), (6, 3)}
    answered = [[k for k in ks if (r, k) not in silent] for r, ks in enumerate(asked, 1)]
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, participants=asked, silent=silent)
    agree(states, reference.codasca(game, x, y, PLAN, 0.04, 1.0, 0.2, participants=answered))


def test_codascas_control_variates_average_to_the_servers() -> None:
    """With partial participation c stays the weighted mean of all ck, of absent clients too."""
    _, x, y, oracles = setting("regression")
    kept: dict[int, Arrays] = {}

    class Watching(Codasca):
        def local_update(self, sent, memory, oracle, turn):  # type: ignore[no-untyped-def]
            reply, memory = super().local_update(sent, memory, oracle, turn)
            kept[oracle.site] = memory
            return reply, memory

    watching = Watching(local_steps=3, lr=0.04, gamma=0.0, fraction=0.5)
    state = drive(watching, torched(x, y), oracles, ROUNDS, K, weights=WEIGHTS, participants=SOME)[-1]
    for c, ck in (("cx", "ckx"), ("cy", "cky")):
        mean = sum(WEIGHTS[k] * kept[k][ck] for k in range(K)) / sum(WEIGHTS)
        torch.testing.assert_close(state[c], mean, rtol=0, atol=1e-12)
