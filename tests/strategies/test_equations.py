"""Server and client halves against the NumPy simulations of tests/reference, to 1e-9, over three stages."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from edelweiss.federation import StrategyError
from edelweiss.strategies.coda_plus import CodaPlus
from edelweiss.strategies.codasca import Codasca
from edelweiss.strategies.fedavg import FedAvg
from edelweiss.strategies.fess_gda import FessGda
from edelweiss.strategies.local_sgda import LocalSGDA
from tests.reference import algorithms as reference
from tests.reference.games import RegressionGame
from tests.said import has
from tests.strategies.halves import Arrays, RegressionOracle, drive, regression_oracles
from tests.strategies.settings import (
    PLAN,
    ROUNDS,
    SOME,
    STAGES,
    WEIGHTS,
    Everyone,
    K,
    agree,
    by_game,
    by_turnout,
    setting,
    share,
    torched,
)


def test_the_plan_has_three_stages_of_several_rounds_each() -> None:
    assert [(stage.rounds, stage.steps) for stage in PLAN] == [([1, 2, 3], 3), ([4, 5, 6], 6), ([7, 8], 12)]
    for stage in PLAN:
        for r in stage.rounds:
            context = FedAvg(**STAGES).context(r, ROUNDS, "train", K)
            assert (context.rate, context.local_steps) == (stage.shrink, stage.steps)
            assert (context.starts_stage, context.ends_stage) == (r == stage.rounds[0], r == stage.rounds[-1])


def test_the_gradients_of_the_game_are_those_of_its_value() -> None:
    """By autograd: the reference has them by a formula, and so has the oracle that drives the algorithms."""
    game = RegressionGame(K)
    oracle = RegressionOracle(game, 2, 1)
    data, targets = batch = oracle.draw()
    x, y = (torch.from_numpy(start.copy()).requires_grad_() for start in (game.x, game.y))
    residuals = data[:, : game.primal] @ x - targets
    for dual in (None, y):
        value = (residuals.square() / 2).mean()
        if dual is not None:
            value = value + (data[:, game.primal :] @ dual * residuals).mean() - dual.square().sum() / 2
        expected = torch.autograd.grad(value, [x] if dual is None else [x, dual], retain_graph=True)
        found = oracle.gradient(x.detach(), None if dual is None else dual.detach(), batch)
        for one, other in zip(found, (*expected, None), strict=False):
            assert (one is None) == (other is None)
            assert one is None or torch.allclose(one, other, rtol=1e-12, atol=1e-12)


@by_turnout
def test_fedavg(some: Everyone, weights: list[float] | None) -> None:
    game = RegressionGame(K)
    strategy = FedAvg(**STAGES, lr=0.05, fraction=share(some))
    oracles = regression_oracles(game)
    states = drive(strategy, torched(game.x), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)
    expected = reference.fedavg(game, game.x, PLAN, 0.05, weights, some)
    for state, x in zip(states, expected, strict=True):
        np.testing.assert_allclose(state["x"].numpy(), x, rtol=0, atol=1e-9)
    assert np.abs(expected[-1] - expected[-2]).max() > 1e-6


@by_turnout
def test_fedavg_with_adam(some: Everyone, weights: list[float] | None) -> None:
    game = RegressionGame(K)
    strategy = FedAvg(**STAGES, lr=0.02, optimiser="adam", beta1=0.8, beta2=0.95, eps=1e-3, fraction=share(some))
    oracles = regression_oracles(game)
    states = drive(strategy, torched(game.x), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)
    expected = reference.fedavg_adam(game, game.x, PLAN, 0.02, (0.8, 0.95), 1e-3, weights, some)
    for state, x in zip(states, expected, strict=True):
        np.testing.assert_allclose(state["x"].numpy(), x, rtol=0, atol=1e-9)
    assert np.abs(expected[-1] - expected[-2]).max() > 1e-6


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_one_round_of_one_site_with_adam_is_torchs_adamw(weight_decay: float) -> None:
    game, steps = RegressionGame(1), 40
    strategy = FedAvg(local_steps=steps, lr=0.02, optimiser="adam", weight_decay=weight_decay)
    x = torch.nn.Parameter(torch.from_numpy(game.x.copy()))
    adam = torch.optim.AdamW([x], lr=0.02, weight_decay=weight_decay)
    for t in range(steps):
        x.grad = torch.from_numpy(game.gradients(0, x.detach().numpy(), np.zeros(0), 1, t)[0])
        adam.step()
    [state] = drive(strategy, torched(game.x), regression_oracles(game), 1, 1)
    torch.testing.assert_close(state["x"], x.detach(), rtol=0, atol=1e-12)
    assert (x - torch.from_numpy(game.x)).abs().max() > 0.1


@by_turnout
@by_game
def test_local_sgda(name: str, some: Everyone, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    strategy = LocalSGDA(**STAGES, lr=0.03, lr_dual=0.08, fraction=share(some))
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)
    agree(states, reference.local_sgda(game, x, y, PLAN, 0.03, 0.08, weights, some))


@by_turnout
@by_game
def test_fess_gda(name: str, some: Everyone, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    own = {"server_lr": 0.8, "server_lr_dual": 1.2, "smoothing": 1.5, "beta": 0.3}
    strategy = FessGda(**STAGES, lr=0.03, lr_dual=0.08, fraction=share(some), **own)  # type: ignore[arg-type]
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)
    agree(states, reference.fess_gda(game, x, y, PLAN, 0.03, 0.08, (0.8, 1.2), 1.5, 0.3, weights, some))


def test_fess_gda_refuses_a_pull_beyond_z() -> None:
    FessGda(local_steps=10, lr=0.1, smoothing=0.9)
    with pytest.raises(StrategyError, check=has("fess-gda.smoothing = 1.1", "local-steps = 10", "at most 0.999")):
        FessGda(local_steps=10, lr=0.1, smoothing=1.1)
    with pytest.raises(StrategyError, check=has("fess-gda.momentum = 0.9", "at most 0.241")):  # a path of 41.4 steps
        FessGda(local_steps=10, lr=0.1, smoothing=0.9, momentum=0.9)


@pytest.mark.slow
@by_turnout
@pytest.mark.parametrize("gamma", [0.0, 0.7])
@by_game
def test_coda_plus(name: str, gamma: float, some: Everyone, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    strategy = CodaPlus(**STAGES, lr=0.04, gamma=gamma, fraction=share(some))
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)
    agree(states, reference.coda_plus(game, x, y, PLAN, 0.04, gamma, weights, some))


@pytest.mark.slow
@by_turnout
@pytest.mark.parametrize(("gamma", "server_lr"), [(0.0, 1.4), (0.7, 1.0)])
@by_game
def test_codasca(name: str, gamma: float, server_lr: float, some: Everyone, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    strategy = Codasca(**STAGES, lr=0.04, server_lr=server_lr, gamma=gamma, fraction=share(some))
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)
    agree(states, reference.codasca(game, x, y, PLAN, 0.04, server_lr, gamma, weights, some))


@pytest.mark.parametrize("some", [None, SOME], ids=["all", "some"])
def test_a_stage_of_codasca_hands_on_the_mean_of_its_rounds(some: Everyone) -> None:
    game, x, y, oracles = setting("regression")
    strategy = Codasca(**STAGES, lr=0.04, server_lr=1.1, output="average", fraction=share(some))
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, participants=some, wire=True)

    def mean(points: list[reference.Point]) -> reference.Point:
        return np.mean([x for x, _ in points], axis=0), np.mean([y for _, y in points], axis=0)

    agree(states, reference.codasca(game, x, y, PLAN, 0.04, 1.1, 0.002, None, some, output=mean))


@pytest.mark.parametrize("seed", range(4))
def test_a_stage_of_codasca_hands_on_one_of_its_rounds_drawn_by_the_seed(seed: int) -> None:
    """Whichever it is, the next stage begins there: the reference takes the round that is next to the product's."""
    game, x, y, oracles = setting("regression")
    strategy = Codasca(**STAGES, lr=0.04, output="random", seed=seed)
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, wire=True)
    handed_on = iter([states[stage.rounds[-1] - 1]["x"].numpy() for stage in PLAN])

    def nearest(points: list[reference.Point]) -> reference.Point:
        given = next(handed_on)
        return min(points, key=lambda point: float(np.abs(point[0] - given).max()))

    expected = reference.codasca(game, x, y, PLAN, 0.04, 1.0, 0.002, output=nearest)
    for state, (there_x, there_y) in zip(states, expected, strict=True):
        np.testing.assert_allclose(state["x"], there_x, rtol=0, atol=1e-9)
        np.testing.assert_allclose(state["y"], there_y, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_each_round_of_a_stage_is_handed_on_equally_often() -> None:
    counts, seeds, rounds = Counter[float](), 2000, 4
    for seed in range(seeds):
        strategy, state = Codasca(local_steps=1, output="random", seed=seed), dict[str, torch.Tensor]()
        for r in range(1, rounds + 1):
            point = {name: torch.tensor([float(r)]) for name in ("x", "y")}
            state = strategy.stage_output(state, state | point, strategy.context(r, rounds, "train", K))
        counts[state["x"].item()] += 1
        assert state["x"].item() == state["y"].item()
    spread = math.sqrt(seeds * (1 / rounds) * (1 - 1 / rounds))
    assert sorted(counts) == [1, 2, 3, 4]
    assert all(abs(count - seeds / rounds) < 5 * spread for count in counts.values())


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
        def local_update(self, sent, memory, oracle, context):  # type: ignore[no-untyped-def]
            reply, memory = super().local_update(sent, memory, oracle, context)
            kept[oracle.site] = memory
            return reply, memory

    watching = Watching(local_steps=3, lr=0.04, gamma=0.0, fraction=0.5)
    state = drive(watching, torched(x, y), oracles, ROUNDS, K, weights=WEIGHTS, participants=SOME)[-1]
    for c, ck in (("cx", "ckx"), ("cy", "cky")):
        mean = sum(WEIGHTS[k] * kept[k][ck] for k in range(K)) / sum(WEIGHTS)
        torch.testing.assert_close(state[c], mean, rtol=0, atol=1e-12)
