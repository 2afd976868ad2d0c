"""FMGDA, FGDA and AdaFGDA: equations, degenerate cases, schedules, what is refused and what travels."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.federation import FederatedStrategy, StrategyError
from edelweiss.strategies.adafgda import AdaFgda
from edelweiss.strategies.fgda import Fgda
from edelweiss.strategies.fmgda import Fmgda
from edelweiss.strategies.local_sgda import LocalSGDA
from edelweiss.strategies.recursive_momentum import corrected, initial_estimate
from tests.reference import algorithms, recursive
from tests.reference.games import Game, RegressionGame, SaddleGame, Vector
from tests.reference.recursive import Rates
from tests.said import has
from tests.strategies.halves import Arrays, Batch, OpenOracle, RegressionOracle, drive, saddle_oracles
from tests.strategies.settings import (
    PLAN,
    ROUNDS,
    STAGES,
    WEIGHTS,
    K,
    agree,
    by_game,
    by_weights,
    points,
    setting,
    torched,
)

# The two weights differ, so that they cannot be mistaken for each other.
FIXED: dict[str, Any] = {"fresh_weight": 0.3, "fresh_weight_dual": 0.6}
# m is small enough for a weight above 1 in the first iterations, were it not capped, and for a steep fall after them.
SCHEDULES: dict[str, tuple[dict[str, Any], Rates]] = {
    "constant": (FIXED, recursive.constant(0.3, 0.6)),
    "cube-root": (
        {"schedule": "cube-root"} | {"schedule_n": 0.8, "schedule_m": 4.0, "schedule_c": 1.2, "schedule_c_dual": 2.0},
        recursive.cube_root(K, 0.8, 4.0, 1.2, 2.0),
    ),
}
COROLLARY: dict[str, Any] = {"schedule": "corollary-1", "schedule_c": 1e3, "schedule_c_dual": 3e3}


# ---------------------------------------------------------------------- equations


@pytest.mark.slow
@by_weights
@pytest.mark.parametrize("schedule", SCHEDULES)
@by_game
def test_fmgda(name: str, schedule: str, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    keys, rates = SCHEDULES[schedule]
    strategy = Fmgda(**STAGES, **keys, lr=0.04, lr_dual=0.07)
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, wire=True)
    agree(states, recursive.fmgda(game, x, y, PLAN, 0.04, 0.07, rates, weights))


@pytest.mark.slow
@by_weights
@pytest.mark.parametrize("schedule", SCHEDULES)
@by_game
def test_fgda(name: str, schedule: str, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    keys, rates = SCHEDULES[schedule]
    strategy = Fgda(**STAGES, **keys, lr=0.04, lr_dual=0.07)
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, wire=True)
    agree(states, recursive.fgda(game, x, y, PLAN, 0.04, 0.07, rates, weights))


@pytest.mark.slow
@pytest.mark.parametrize(("matrix", "weights"), [("adam", None), ("belief", WEIGHTS)], ids=["adam", "belief-weighted"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@by_game
def test_adafgda(name: str, schedule: str, matrix: str, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    keys, rates = SCHEDULES[schedule]
    strategy = AdaFgda(**STAGES, **keys, lr=0.02, lr_dual=0.03, matrix=matrix, rho=0.4, varrho=0.7)
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, wire=True)
    expected = recursive.fgda(game, x, y, PLAN, 0.02, 0.03, rates, weights, matrix, 0.4, 0.7)
    agree(states, expected)
    assert all((state["a"] >= 0).all() and (state["b"] >= 0).all() for state in states)


@by_game
def test_fmgda_under_the_schedule_of_its_corollary(name: str) -> None:
    """n is 200 here, so that η_t is not tiny; its 1728 q³ K² iterations of constant steps outlast the run."""
    game, x, y, oracles = setting(name)
    strategy = Fmgda(local_steps=3, **COROLLARY, schedule_n=200.0, lr=0.02, lr_dual=0.03)
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, wire=True)
    rates = recursive.corollary_1(K, 200.0, 3, 1e3, 3e3)
    agree(states, recursive.fmgda(game, x, y, algorithms.plan(ROUNDS, 3), 0.02, 0.03, rates))


def test_the_corollarys_steps_are_constant_and_then_fall_with_the_cube_root() -> None:
    strategy, expected = Fmgda(local_steps=2, **COROLLARY, schedule_n=3.0), recursive.corollary_1(4, 3.0, 2, 1e3, 3e3)
    late = 1728 * 2**3 * 4**2
    for t in (0, 1, 1000, late - 2, late, late + 1, 8 * late):
        context = strategy.context(t // 2 + 1, 10**7, "train", 4)
        assert strategy.eta(context, t % 2) == pytest.approx(expected.eta(t), rel=1e-12)
    assert expected.eta(0) == expected.eta(late - 2) == pytest.approx(3 / (12 * 2)), "1 / (12 L q)"
    assert expected.eta(8 * late) == pytest.approx(expected.eta(0) / 2, rel=1e-4)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("matrix", ["identity", "adam"])
def test_fgda_goes_on_from_the_averages_where_a_memory_is_lost(matrix: str, schedule: str) -> None:
    game, x, y, oracles = setting("regression")
    keys, rates = SCHEDULES[schedule]
    own: dict[str, Any] = {} if matrix == "identity" else {"matrix": matrix, "rho": 0.4, "varrho": 0.7}
    strategy = (Fgda if matrix == "identity" else AdaFgda)(**STAGES, **keys, lr=0.02, lr_dual=0.03, **own)
    lost = {(3, 0), (5, 2)}
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, lost=lost)
    divisors = (matrix, own.get("rho", 1.0), own.get("varrho", 1.0))
    agree(states, recursive.fgda(game, x, y, PLAN, 0.02, 0.03, rates, None, *divisors, lost=lost))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_fmgda_goes_on_from_the_received_point_where_a_memory_is_lost_or_old(schedule: str) -> None:
    """Lost twice; and a site that misses a round, or two, or the first one, and comes back."""
    game, x, y, oracles = setting("regression")
    keys, rates = SCHEDULES[schedule]
    strategy = Fmgda(**STAGES, **keys, lr=0.04, lr_dual=0.07)
    for disturbed in ({"lost": {(3, 0), (5, 2)}}, {"silent": {(2, 1)}}, {"silent": {(1, 3), (4, 0), (5, 0)}}):
        states = drive(strategy, torched(x, y), oracles, ROUNDS, K, **disturbed)  # type: ignore[arg-type]
        agree(states, recursive.fmgda(game, x, y, PLAN, 0.04, 0.07, rates, **disturbed))  # type: ignore[arg-type]


def test_the_estimator_works_without_y_and_leaves_what_it_was_given() -> None:
    game = RegressionGame(1)
    x, x_prev = torch.from_numpy(game.x), torch.from_numpy(game.x + 1)
    oracle = RegressionOracle(game, 0, 1)
    u, v = initial_estimate(oracle, (x_prev, None), 64, Fmgda().context(1, 1, "train", 1))
    assert v is None
    kept = u.clone()
    new, v = corrected(oracle, (x, None), (x_prev, None), (u, None), (0.25, 1.0))
    assert v is None
    assert torch.equal(u, kept)
    nothing = np.zeros(0)
    here, there = (game.gradients(0, point.numpy(), nothing, 1, 1)[0] for point in (x, x_prev))
    np.testing.assert_allclose(new, here + 0.75 * (game.gradients(0, x_prev.numpy(), nothing, 1, 0)[0] - there))


@pytest.mark.parametrize("algorithm", [Fmgda, Fgda, AdaFgda])
def test_both_gradients_of_a_step_are_of_one_batch_and_only_the_first_of_all_has_another_size(
    algorithm: type[Fmgda | Fgda | AdaFgda],
) -> None:
    class Noting(RegressionOracle):
        def draw(self, size: int | None = None) -> Batch:
            sizes.append(size)
            drawn.append(super().draw(size))
            return drawn[-1]

        def gradient(self, x, y=None, batch=None):  # type: ignore[no-untyped-def]
            used.append(batch)
            return super().gradient(x, y, batch)

    game = RegressionGame(1)
    for start in (torched(game.x, game.y), torched(game.x, game.y) | torched_estimators(game)):
        sizes: list[int | None] = []
        drawn: list[Batch] = []
        used: list[Batch | None] = []
        strategy = algorithm(local_steps=4, initial_batch=33)
        context = strategy.context(1 if "u" not in start else 2, 2, "train", 1)
        start |= {name: torch.ones_like(start[of]) for name, of in (("a", "x"), ("b", "y"))}
        strategy.local_update(start, {}, Noting(game, 0, 1), context)
        if "u" not in start:
            assert sizes.pop(0) == 33
            assert used.pop(0) is drawn.pop(0)
        assert sizes == [None] * (3 if algorithm is Fmgda and context.round == 1 else 4)
        assert all(a is b is batch for a, b, batch in zip(used[::2], used[1::2], drawn, strict=True))


def torched_estimators(game: RegressionGame) -> Arrays:
    return {"u": torch.ones(game.primal, dtype=torch.float64), "v": torch.ones(game.dual, dtype=torch.float64)}


# ---------------------------------------------------------------------- degenerate cases

PLAIN: dict[str, Any] = {"lr": 0.04, "lr_dual": 0.06}
ONCE: dict[str, Any] = {"initial_batch": 6}  # one batch, as all others


def continued(game: RegressionGame) -> OpenOracle:
    """One batch after the other over the whole run, wherever a round ends: as with K = 1 nothing marks a round."""
    oracle = RegressionOracle(game, 0, 1)
    return lambda site, server_round: oracle


def test_with_fresh_gradients_alone_fmgda_is_local_sgda() -> None:
    """Weights of 1: each step follows the gradient where it starts, on the same batches as in Local SGDA.

    No step is shifted: the estimator at the averages is the first act of a round, before the first step.
    """
    _, x, y, oracles = setting("regression-clipped")
    fmgda = drive(
        Fmgda(**STAGES, **PLAIN, **ONCE, fresh_weight=1.0, fresh_weight_dual=1.0), torched(x, y), oracles, ROUNDS, K
    )
    agree(fmgda, points(drive(LocalSGDA(**STAGES, **PLAIN), torched(x, y), oracles, ROUNDS, K)), 1e-12)


def test_with_fresh_gradients_alone_fgda_differs_from_local_sgda_by_the_first_step_of_a_round() -> None:
    """Weights of 1: after the first round, that step is along the averaged gradients, from before averaging."""
    game, x, y, oracles = setting("regression")
    q = 3
    states = drive(
        Fgda(local_steps=q, **PLAIN, **ONCE, fresh_weight=1.0, fresh_weight_dual=1.0), torched(x, y), oracles, ROUNDS, K
    )
    for r in range(2, ROUNDS + 1):
        before, ends = states[r - 2], []
        for k in range(K):
            xk, yk = before["x"].numpy(), before["y"].numpy()
            by_x, by_y = before["u"].numpy(), before["v"].numpy()
            for t in range(q):
                xk, yk = xk - PLAIN["lr"] * by_x, yk + PLAIN["lr_dual"] * by_y
                by_x, by_y = game.gradients(k, xk, yk, r, t)
            ends.append((xk, yk))
        np.testing.assert_allclose(states[r - 1]["x"], np.mean([x for x, _ in ends], axis=0), rtol=0, atol=1e-12)
        np.testing.assert_allclose(states[r - 1]["y"], np.mean([y for _, y in ends], axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_with_one_site_fgda_is_fmgda(schedule: str) -> None:
    """Nothing is averaged; the rounds are only cut at another place of the same sequence."""
    game = RegressionGame(1)
    keys, _ = SCHEDULES[schedule]
    start = torched(game.x, game.y)
    fmgda = drive(Fmgda(**STAGES, **PLAIN, **keys), start, continued(game), ROUNDS, 1)
    agree(drive(Fgda(**STAGES, **PLAIN, **keys), start, continued(game), ROUNDS, 1), points(fmgda), 1e-12)
    assert not torch.equal(fmgda[-1]["u"], drive(Fgda(**STAGES, **PLAIN), start, continued(game), ROUNDS, 1)[-1]["u"])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("matrix", ["adam", "belief"])
def test_with_unit_matrices_adafgda_is_fgda(matrix: str, schedule: str) -> None:
    """ϱ = 1 keeps a = b = 0, so that A = B = ρ = 1; another ρ divides the step sizes."""
    game, x, y, _ = setting("regression-clipped")
    assert isinstance(game, RegressionGame)
    keys, _ = SCHEDULES[schedule]

    def driven(strategy: FederatedStrategy) -> list[Arrays]:
        """With one run of batches over both phases of the first round: FGDA has only one."""
        return drive(strategy, torched(x, y), cache(lambda k, r: RegressionOracle(game, k, r)), ROUNDS, K)

    fgda = points(driven(Fgda(**STAGES, **PLAIN, **keys)))
    for rho in (1.0, 0.25):
        steps = {"lr": rho * PLAIN["lr"], "lr_dual": rho * PLAIN["lr_dual"]}
        agree(driven(AdaFgda(**STAGES, **steps, **keys, matrix=matrix, rho=rho, varrho=1.0)), fgda, 1e-11)


def centralised(game: Game, x: Vector, y: Vector) -> list[algorithms.Point]:
    path = []
    for _ in range(ROUNDS):
        both = [game.gradients(k, x, y, 1, 0) for k in range(game.clients)]
        x = x - PLAIN["lr"] * np.mean([by_x for by_x, _ in both], axis=0)
        y = y + PLAIN["lr_dual"] * np.mean([by_y for _, by_y in both], axis=0)
        path.append((x, y))
    return path


@pytest.mark.parametrize("weight", [1.0, 0.4, 0.01])
def test_with_one_step_and_exact_gradients_both_are_centralised(weight: float) -> None:
    """Whatever the weight: an exact estimate stays exact, on average over the sites.

    FMGDA at any curvatures. FGDA's sites part in the first round, which begins with no average, so only at equal ones.
    """
    game, x, y, oracles = setting("saddle")
    keys = {"local_steps": 1, **PLAIN, "fresh_weight": weight, "fresh_weight_dual": weight}
    agree(drive(Fmgda(**keys), torched(x, y), oracles, ROUNDS, K), centralised(game, x, y), 1e-12)
    assert isinstance(game, SaddleGame)
    slopes = np.full(K, 0.8)
    equal, alike = SaddleGame(slopes, game.offsets), saddle_oracles(slopes, game.offsets)
    agree(drive(Fgda(**keys), torched(x, y), alike, ROUNDS, K), centralised(equal, x, y), 1e-12)
    with pytest.raises(AssertionError, check=has("after round 2")):
        agree(drive(Fgda(**keys), torched(x, y), oracles, ROUNDS, K), centralised(game, x, y), 1e-12)


@pytest.mark.parametrize("algorithm", [Fmgda, Fgda])
def test_identical_sites_with_exact_gradients_take_centralised_steps(algorithm: type[Fmgda | Fgda]) -> None:
    """Exact gradients have nothing to be averaged: with any q and α it is gradient descent ascent."""
    slopes, offsets = np.full(K, 0.8), np.tile(np.arange(6.0), (K, 1))
    _, x, y, _ = setting("saddle")
    states = drive(algorithm(local_steps=5, **PLAIN), torched(x, y), saddle_oracles(slopes, offsets), ROUNDS, K)
    plan = algorithms.plan(ROUNDS, 5)
    agree(states, algorithms.local_sgda(SaddleGame(slopes, offsets), x, y, plan, PLAIN["lr"], PLAIN["lr_dual"]), 1e-12)


# ---------------------------------------------------------------------- schedules


def test_the_cube_root_schedule_counts_iterations_over_stages_and_knows_the_sites() -> None:
    strategy = Fgda(
        **STAGES,
        lr=0.1,
        lr_dual=0.1,
        schedule="cube-root",
        schedule_n=2.0,
        schedule_m=6.0,
        schedule_c=0.5,
        schedule_c_dual=0.1,
    )
    # Round 5: 3 rounds of 3 steps and one of 6 went before it, and the stage has halved the step size.
    context = strategy.context(5, ROUNDS, "train", 8)
    assert context.iteration == 15
    assert strategy.eta(context, 6) == pytest.approx(2 * 2 / 3)  # t = 21: 2 (8 / 27)^(1/3)
    assert strategy.steps(context, 6) == pytest.approx((0.1 * 4 / 3 / 2, 0.1 * 4 / 3 / 2))
    assert strategy.weights(context, 6) == pytest.approx((0.5 * 16 / 9, 0.1 * 16 / 9))
    assert strategy.eta(context, -1) == strategy.eta(strategy.context(4, ROUNDS, "train", 8), 5), (
        "over the border of a round"
    )


def test_a_weight_is_never_above_one() -> None:
    strategy = Fmgda(lr=0.1, lr_dual=0.1, schedule="cube-root", schedule_n=5.0, schedule_m=1.0, schedule_c=1.0)
    weights = [strategy.weights(strategy.context(r, 1000, "train", K), 0)[0] for r in range(1, 1001)]  # t to 9990
    assert weights[0] == 1
    assert all(0 < later <= earlier <= 1 for earlier, later in pairwise(weights))
    assert weights[-1] < 1


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("algorithm", [Fmgda, Fgda, AdaFgda])
def test_bad_hyper_parameters_are_refused_by_name(algorithm: type[Fmgda | Fgda | AdaFgda]) -> None:
    with pytest.raises(StrategyError) as refusal:
        algorithm(
            fresh_weight=0.0,
            fresh_weight_dual=1.5,
            initial_batch=-1,
            schedule="square-root",
            schedule_m=0.0,
            schedule_c=-1.0,
        )
    said = str(refusal.value)
    for key in (
        "weight = 0.0",
        "weight-dual = 1.5",
        "initial-batch = -1",
        "schedule = 'square-root'",
        "schedule-m = 0.0",
    ):
        assert key in said
    assert "'constant', 'cube-root', 'corollary-1'" in said


def test_bad_matrices_are_refused() -> None:
    with pytest.raises(StrategyError, check=has("'adagrad'", "'adam', 'belief'", key="matrix")):
        AdaFgda(matrix="adagrad")
    with pytest.raises(StrategyError, check=has("rho = 0.0", "varrho = 1.1")):
        AdaFgda(rho=0.0, varrho=1.1)


# ---------------------------------------------------------------------- messages


@pytest.mark.parametrize("algorithm", [Fmgda, Fgda, AdaFgda])
def test_what_travels(algorithm: type[Fmgda | Fgda | AdaFgda]) -> None:
    """x, y, u, v each way; down, u and v not before they exist. AdaFGDA's first matrices need an exchange before."""
    _, x, y, oracles = setting("saddle")
    sent, replied, kept = [], [], []

    class Noting(algorithm):  # type: ignore[misc, valid-type]
        def local_update(self, given, memory, oracle, context):  # type: ignore[no-untyped-def]
            reply, memory = super().local_update(given, memory, oracle, context)
            sent.append(set(given))
            replied.append(set(reply))
            kept.append(set(memory))
            return reply, memory

    drive(Noting(), torched(x, y), oracles, 3, K)
    matrices = {"a", "b"} if algorithm is AdaFgda else set()
    start = K if algorithm is AdaFgda else 0
    assert sent == [{"x", "y"}] * start + [{"x", "y"} | matrices] * K + [{"x", "y", "u", "v"} | matrices] * (2 * K)
    assert replied == [{"u", "v"}] * start + [{"x", "y", "u", "v"}] * (3 * K)
    assert kept == [{"u", "v", "round"}] * start + [{"x_prev", "y_prev", "round"}] * (3 * K)


def test_the_sites_first_step_is_along_the_estimate_that_they_sent_or_a_new_one() -> None:
    """AdaFGDA's site remembers it between the first two exchanges; in a lost memory's place it estimates anew."""
    _, x, y, oracles = setting("regression")
    start = torched(x, y)
    strategy = AdaFgda(local_steps=1)
    estimated = strategy.context(1, 2, "start", K)
    reply, memory = strategy.local_update(start, {}, oracles(0, 1), estimated)
    given, context = (
        start | {"a": torch.ones_like(start["x"]), "b": torch.ones_like(start["y"])},
        replace(estimated, phase="train"),
    )
    moved, _ = strategy.local_update(given, memory, oracles(1, 1), context)
    torch.testing.assert_close(moved["x"], start["x"] - 0.001 / 1.01 * reply["u"])
    anew, _ = strategy.local_update(given, {}, oracles(1, 1), context)
    other, _ = strategy.local_update(start, {}, oracles(1, 1), estimated)
    torch.testing.assert_close(anew["x"], start["x"] - 0.001 / 1.01 * other["u"])
