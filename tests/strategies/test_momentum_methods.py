"""Local SGDA+, NPA, Momentum Local SGDA(+) and CODA: their equations, what they become at the edges, where they end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.federation import FederatedStrategy, Reply, Site, StrategyError
from edelweiss.problems.saddle import saddle_coefficients
from edelweiss.server_app import simulate
from edelweiss.strategies.coda import Coda
from edelweiss.strategies.coda_plus import CodaPlus
from edelweiss.strategies.local_sgda import LocalSGDA
from edelweiss.strategies.local_sgda_plus import LocalSGDAPlus
from edelweiss.strategies.momentum_sgda import MomentumLocalSGDA, MomentumLocalSGDAPlus
from edelweiss.strategies.npa import NPA
from tests.problems.example import given_saddle
from tests.reference import algorithms as reference
from tests.reference import momentum as simulated
from tests.reference.algorithms import Stage
from tests.reference.games import Game, RegressionGame, SaddleGame, Vector
from tests.strategies.engine import run_saddle
from tests.strategies.halves import Batch, OpenOracle, RegressionOracle, drive
from tests.strategies.jobs import Job, assert_agree, regression, saddle
from tests.strategies.optimum import STEPS
from tests.strategies.settings import (
    PLAN,
    ROUNDS,
    STAGES,
    Everyone,
    K,
    agree,
    by_game,
    by_turnout,
    setting,
    share,
    torched,
)

# How many rounds a snapshot lasts: S = q refreshes in each, S = 2q in every other, S = q² in the first of each stage
# of these (they have at most three rounds, and q is 3 or more).
SNAPSHOTS: dict[int, Callable[[Stage], int]] = {3: lambda stage: 1, 6: lambda stage: 2, 0: lambda stage: stage.steps}


class Sized(RegressionOracle):
    """Knows a batch of a given size, and the best dual: client k has 30 - 5k samples for it.

    Attributes
    ----------
    sizes : list of int or None
        Of the batches that were asked for.
    summed : list of int
        How many samples the terms of the best dual were taken over.
    """

    def __init__(
        self, game: RegressionGame, site: int, server_round: int, sizes: list[int | None], summed: list[int]
    ) -> None:
        super().__init__(game, site, server_round)
        self.sizes, self.summed = sizes, summed

    def draw(self, size: int | None = None) -> Batch:
        self.sizes.append(size)
        return super().draw() if size is None or size <= self.game.batch else self.first(size)

    def first(self, size: int) -> Batch:
        rows = slice(0, min(size, 30 - 5 * self.site))
        data = np.column_stack([self.game.features[self.site][rows], self.game.couplings[self.site][rows]])
        return torch.from_numpy(data), torch.from_numpy(self.game.targets[self.site][rows])

    def dual_terms(self, x: Tensor, batch: Batch | None = None) -> tuple[Tensor, Tensor]:
        data, targets = batch if batch is not None else self.first(30)
        self.summed.append(len(targets))
        residuals = data[:, : self.game.primal] @ x - targets
        return (residuals @ data[:, self.game.primal :])[None], torch.tensor([float(len(targets))], dtype=x.dtype)


def sized_oracles(
    game: RegressionGame, sizes: list[int | None] | None = None, summed: list[int] | None = None
) -> OpenOracle:
    sizes, summed = [] if sizes is None else sizes, [] if summed is None else summed
    return lambda site, server_round: Sized(game, site, server_round, sizes, summed)


def dual_setting(name: str) -> tuple[Game, Vector, Vector, OpenOracle]:
    """Like `setting`, with oracles that know the best dual; where duals are clipped, one of its numbers is negative."""
    game, x, y, oracles = setting(name)
    if not isinstance(game, RegressionGame):
        return game, x, y, oracles
    if game.clip:
        for couplings in game.couplings:
            couplings[:, 0] *= -1
    return game, x, y, sized_oracles(game)


# ---------------------------------------------------------------------- equations


@by_turnout
@pytest.mark.parametrize("snapshot", SNAPSHOTS)
@by_game
def test_local_sgda_plus(name: str, snapshot: int, some: Everyone, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    strategy = LocalSGDAPlus(**STAGES, lr=0.03, lr_dual=0.08, snapshot_steps=snapshot, fraction=share(some))
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)
    expected = simulated.sgda_at_snapshots(game, x, y, PLAN, 0.03, 0.08, SNAPSHOTS[snapshot], weights, some)
    agree(states, expected)


@by_turnout
@by_game
def test_momentum_local_sgda(name: str, some: Everyone, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    own: dict[str, float] = {"lr": 0.05, "lr_dual": 0.12, "alpha": 0.6, "beta": 0.5, "beta_dual": 1.3}
    strategy = MomentumLocalSGDA(**STAGES, **own, fraction=share(some))  # type: ignore[arg-type]
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)
    agree(states, simulated.momentum_sgda(game, x, y, PLAN, *own.values(), weights, some))


@by_turnout
@pytest.mark.parametrize("snapshot", [6, 0])
@by_game
def test_momentum_local_sgda_plus(name: str, snapshot: int, some: Everyone, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    own: dict[str, float] = {"lr": 0.05, "lr_dual": 0.12, "alpha": 0.6, "beta": 0.5, "beta_dual": 1.3}
    strategy = MomentumLocalSGDAPlus(**STAGES, **own, snapshot_steps=snapshot, fraction=share(some))  # type: ignore[arg-type]
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)
    agree(states, simulated.momentum_sgda(game, x, y, PLAN, *own.values(), weights, some, SNAPSHOTS[snapshot]))


@by_turnout  # with all asked, some may still fall silent
@pytest.mark.parametrize("gamma", [0.0, 0.7])
@by_game
def test_coda(name: str, gamma: float, some: Everyone, weights: list[float] | None) -> None:
    game, x, y, oracles = dual_setting(name)
    strategy = Coda(**STAGES, lr=0.04, gamma=gamma)
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)
    expected = simulated.coda(game, x, y, PLAN, 0.04, gamma, weights, some)
    agree(states, expected)
    if name == "regression-clipped":  # the projection at the clients has something to do
        assert min(expected[stage.rounds[-1] - 1][1].min() for stage in PLAN[:-1]) < -0.01


@pytest.mark.parametrize("lost", [{(2, 1)}, {(3, 0), (5, 2), (8, 3)}])
def test_coda_starts_the_average_anew_where_a_client_lost_its_memory(lost: set[tuple[int, int]]) -> None:
    game, x, y, oracles = dual_setting("regression")
    strategy = Coda(**STAGES, lr=0.04, gamma=0.2)
    states = drive(strategy, torched(x, y), oracles, ROUNDS, K, lost=lost)
    agree(states, simulated.coda(game, x, y, PLAN, 0.04, 0.2, lost=lost))
    undisturbed = drive(strategy, torched(x, y), oracles, ROUNDS, K)
    assert (states[-1]["x"] - undisturbed[-1]["x"]).abs().max() > 1e-6


def test_coda_keeps_its_dual_where_no_client_has_samples_of_a_class() -> None:
    strategy = Coda(**STAGES)
    context = strategy.context(ROUNDS, ROUNDS, "dual", K)
    state = {"x": torch.ones(3), "y": torch.tensor([0.5])}
    replies = [
        Reply(Site(k, f"{k}", k), {"numerators": torch.ones(2, 1), "denominators": torch.tensor([0.0, 1.0 + k])})
        for k in range(K)
    ]
    assert torch.equal(strategy.aggregate(state, replies, context)["y"], state["y"])


@by_turnout
def test_npa(some: Everyone, weights: list[float] | None) -> None:
    game, x, y, _ = setting("regression")
    assert isinstance(game, RegressionGame)
    sizes: list[int | None] = []
    stages: dict[str, Any] = {"stage_iterations": 3, "stage_decay": 2.0}
    strategy = NPA(**stages, lr=0.03, lr_dual=0.08, batch=game.batch, fraction=share(some))
    states = drive(strategy, torched(x, y), sized_oracles(game, sizes), ROUNDS, K, weights=weights, participants=some)
    agree(states, reference.local_sgda(game, x, y, reference.plan(ROUNDS, 1, 3, decay=2), 0.03, 0.08, weights, some))
    assert set(sizes) == {game.batch}
    assert len(sizes) == ROUNDS * (K if some is None else 2), "one batch per site and round"


# ---------------------------------------------------------------------- messages, memory, work


def exchanged(build: Callable[..., FederatedStrategy], rounds: int, **fields: Any) -> list[tuple[str, str]]:
    """Return the names of what one site is sent and sends, in each exchange; nobody remembers anything but CODA."""
    seen = []
    algorithm: Any = build

    class Noting(algorithm):  # type: ignore[misc]
        def local_update(self, sent, memory, oracle, context):  # type: ignore[no-untyped-def]
            reply, memory = super().local_update(sent, memory, oracle, context)
            assert not memory or issubclass(algorithm, Coda)
            seen.append((" ".join(sorted(sent)), " ".join(sorted(reply))))
            return reply, memory

    drive(Noting(**fields), saddle().start, saddle(sites=1).oracles, rounds, 1)
    return seen


def test_a_snapshot_travels_only_when_it_is_not_x() -> None:
    both, three = ("x y", "x y"), ("snapshot x y", "x y")
    assert exchanged(LocalSGDAPlus, 5, local_steps=2, snapshot_steps=4) == [both, three, both, three, both]
    assert exchanged(LocalSGDAPlus, 4, local_steps=3) == [both, three, three, both]  # S = q² = 9
    assert exchanged(LocalSGDAPlus, 3, local_steps=2, snapshot_steps=2) == [both] * 3
    stages = {"stage_iterations": 6, "stage_decay": 2.0}  # three rounds; each stage takes its own
    assert exchanged(LocalSGDAPlus, 5, local_steps=2, snapshot_steps=4, **stages) == [both, three, both, both, three]


def test_directions_travel_both_ways_once_there_are_any() -> None:
    up = "dx dy x y"
    assert exchanged(MomentumLocalSGDA, 3, local_steps=2) == [("x y", up), (up, up), (up, up)]
    plus = exchanged(MomentumLocalSGDAPlus, 3, local_steps=2, snapshot_steps=4)
    assert plus == [("x y", up), ("dx dy snapshot x y", up), (up, up)]


def test_codas_dual_costs_one_exchange_at_the_end_of_a_stage() -> None:
    stages = {"local_steps": 2, "stage_iterations": 4, "stage_decay": 2.0}
    begin, middle, dual = "x y", "x x_ref y", ("x", "denominators numerators")
    ending = "count x_mean y_mean"
    stage = [(begin, "x y"), (middle, ending), dual]
    assert exchanged(Coda, 4, **stages, gamma=0.1) == stage * 2
    assert exchanged(Coda, 5, **stages, gamma=0.1) == [*stage * 2, (begin, ending), dual]  # a run's end is a stage's


@pytest.mark.parametrize(("dual_batch", "drawn", "summed"), [(0, [], 30), (12, [12], 12)])
def test_codas_dual_takes_the_samples_that_it_is_told_to(dual_batch: int, drawn: list[int], summed: int) -> None:
    game = RegressionGame(K)
    sizes: list[int | None] = []
    taken: list[int] = []
    strategy = Coda(local_steps=2, dual_batch=dual_batch)
    drive(strategy, torched(game.x, game.y), sized_oracles(game, sizes, taken), 2, 1)
    assert [size for size in sizes if size is not None] == drawn, "all other batches have the run's size"
    assert taken == [summed]


@pytest.mark.parametrize("name", ["npa", "local-sgda-plus", "momentum-local-sgda", "momentum-local-sgda-plus", "coda"])
def test_gradients_are_counted_per_step(name: str, tmp_path: Path) -> None:
    steps, rounds = (1, 3) if name == "npa" else (4, 3)
    keys: dict[str, Any] = {"algorithm": name, "problem": "saddle", "saddle.dimension": 3, "sites": 2, "workers": 1}
    keys |= {"local-steps": steps, "rounds": rounds, "device": "cpu", "runs-dir": str(tmp_path)}
    per_site = {
        "npa": steps * rounds,
        "local-sgda-plus": 2 * steps * rounds,
        "momentum-local-sgda": steps * rounds + 1,  # the first direction
        "momentum-local-sgda-plus": 2 * (steps * rounds + 1),
        "coda": steps * rounds,  # the dual takes none
    }[name]
    assert sum(record["gradients"] for record in simulate(keys).metrics) == 2 * per_site


def test_coda_in_the_engine_follows_the_reference() -> None:
    """Through messages, two phases, and memories on disk, in float32: 7 rounds, three stages."""
    keys = {"algorithm": "coda", "sites": 4, "saddle.dimension": 5, "saddle.heterogeneity": 3.0, "rounds": 7, "seed": 3}
    hyper = {"local-steps": 3, "stage-iterations": 9, "stage-decay": 2.0, "coda.lr": 0.03, "coda.gamma": 0.5}
    _, path, asked = run_saddle(keys | hyper)
    slopes, offsets = saddle_coefficients(4, 5, 3.0, 3)
    start = given_saddle(slopes, offsets, seed=3, dtype=torch.float32).initial()
    stages = reference.plan(7, 3, 9, decay=2)
    x, y = (start[name].double().numpy() for name in ("x", "y"))
    expected = simulated.coda(SaddleGame(slopes, offsets), x, y, stages, 0.03, 0.5)
    assert len(asked) == 7 + len(stages) == 10, "one exchange more in the last round of each stage"
    for model, (x, y) in zip(path, expected, strict=True):
        np.testing.assert_allclose(model["x"], x, rtol=0, atol=1e-5)
        np.testing.assert_allclose(model["y"], y, rtol=0, atol=1e-5)


def replied(numerators: list[list[float]], denominators: list[float], weight: float) -> Reply:
    terms = {"numerators": torch.tensor(numerators), "denominators": torch.tensor(denominators)}
    return Reply(Site(0, "s", 1, weight), terms)


def test_sums_are_added_up_whatever_the_sites_weigh() -> None:
    strategy = Coda()
    context = strategy.context(1, 1, "dual", 2)
    replies = [replied([[3.0], [0.0]], [6.0, 0.0], 1.0), replied([[1.0], [-8.0]], [2.0, 4.0], 100.0)]
    state = strategy.aggregate({"x": torch.zeros(1), "y": torch.ones(1)}, iter(replies), context)
    assert state["y"].tolist() == [4 / 8 - 8 / 4]


def test_without_a_class_anywhere_y_stays_as_it_was() -> None:
    strategy = Coda()
    context = strategy.context(1, 1, "dual", 2)
    replies = [replied([[3.0], [0.0]], [6.0, 0.0], 1.0), replied([[1.0], [0.0]], [2.0, 0.0], 1.0)]
    state = strategy.aggregate({"x": torch.zeros(1), "y": torch.ones(1)}, iter(replies), context)
    assert state["y"].tolist() == [1.0]


# ---------------------------------------------------------------------- where one becomes another


FRESH: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "beta_dual": 2.0}  # βα = 1: a direction is the last gradient


def test_coda_before_the_end_of_a_stage_is_coda_plus() -> None:
    game = RegressionGame(K)
    job = Job(torched(game.x, game.y), sized_oracles(game), K)
    common: dict[str, Any] = {"local_steps": 4, "lr": 0.04, "gamma": 0.9}
    assert_agree(lambda: (job.run(Coda(**common))[:-1], job.run(CodaPlus(**common))[:-1]))


def test_with_one_stage_coda_and_coda_plus_end_at_one_x_and_different_y() -> None:
    job, common = saddle(), {"local_steps": 4, "lr": 0.04, "gamma": 0.9}
    coda, coda_plus = (job.run(build(**common))[-1] for build in (Coda, CodaPlus))  # type: ignore[arg-type]
    np.testing.assert_allclose(coda[0], coda_plus[0], rtol=0, atol=1e-12)
    assert np.abs(coda[1] - coda_plus[1]).max() > 1e-3
    # Its y is the best one for this x: the sites' mean gradient by y is zero.
    at = torched(*coda)
    gradients = [job.oracles(k, 1).gradient(at["x"], at["y"])[1] for k in range(K)]
    assert torch.stack(gradients).mean(0).abs().max() < 1e-12


def test_without_the_degenerate_conditions_the_methods_part() -> None:
    """The counterparts of the table: several steps and sites, and a dual that sees x."""
    job, common = saddle(), {"local_steps": 5, "lr": 0.04, "lr_dual": 0.06}
    sgda = job.run(LocalSGDA(**common))  # type: ignore[arg-type]
    fresh = job.run(MomentumLocalSGDA(local_steps=5, lr=0.08, lr_dual=0.12, **FRESH))
    np.testing.assert_allclose(fresh[0][0], sgda[0][0], rtol=0, atol=1e-12)  # but the first step of a round is another
    assert np.abs(fresh[1][0] - sgda[1][0]).max() > 1e-4
    every_round = job.run(LocalSGDAPlus(**common, snapshot_steps=5))  # type: ignore[arg-type]
    assert np.abs(every_round[0][1] - sgda[0][1]).max() > 1e-4
    every_other = job.run(LocalSGDAPlus(**common, snapshot_steps=10))  # type: ignore[arg-type]
    np.testing.assert_array_equal(every_other[0][1], every_round[0][1])
    assert np.abs(every_other[1][1] - every_round[1][1]).max() > 1e-4


# ---------------------------------------------------------------------- memories


@pytest.mark.slow
def test_nothing_is_lost_with_the_memory_of_those_that_have_none() -> None:
    lost = {(r, k) for r in range(2, 7) for k in range(K)}
    job = regression()
    for build in (LocalSGDAPlus, MomentumLocalSGDA, MomentumLocalSGDAPlus):
        kept, gone = (drive(build(**STEPS), job.start, job.oracles, 6, K, lost=gone) for gone in ((), lost))
        assert torch.equal(kept[-1]["x"], gone[-1]["x"])


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("build", "fields", "said"),
    [
        (
            LocalSGDAPlus,
            {"local_steps": 10, "snapshot_steps": 25},
            ["local-sgda-plus.snapshot-steps = 25", "local-steps = 10", "20 or 30", "0 for q² = 100"],
        ),
        (
            MomentumLocalSGDAPlus,
            {"local_steps": 10, "snapshot_steps": 4},
            ["momentum-local-sgda-plus.snapshot-steps = 4", "local-steps = 10", "set 10, or 0"],
        ),
        (NPA, {"local_steps": 10}, ["local-steps = 10", "npa synchronises after every step", "local-steps=1"]),
        (NPA, {"stage_steps_growth": 2.0}, ["stage-steps-growth = 2.0", "stage-steps-growth=1"]),
        (
            MomentumLocalSGDA,
            {"alpha": 0.4, "beta": 3.0},
            ["momentum-local-sgda.beta = 3", "momentum-local-sgda.alpha = 0.4", "2.5 or less"],
        ),
        (MomentumLocalSGDAPlus, {"beta_dual": 1.1}, ["momentum-local-sgda-plus.beta-dual = 1.1", "1 or less"]),
    ],
)
def test_contradictions_are_one_line_with_the_way_out(
    build: type[FederatedStrategy], fields: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(StrategyError) as error:
        build(**fields)
    (line,) = str(error.value).splitlines()
    assert [text for text in said if text not in line] == []


def test_all_contradictions_are_listed_at_once() -> None:
    with pytest.raises(StrategyError) as error:
        MomentumLocalSGDAPlus(snapshot_steps=5, beta=2.0, beta_dual=2.0)
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize("alpha", [0.1, 0.6, 0.7])
def test_what_the_message_about_weights_advises_is_allowed(alpha: float) -> None:
    with pytest.raises(StrategyError) as error:
        MomentumLocalSGDA(alpha=alpha, beta=1.001 / alpha)
    advice = re.search(r"set \S+ to (\S+) or less", str(error.value))
    assert advice
    MomentumLocalSGDA(alpha=alpha, beta=float(advice[1]))  # 1/0.6 as it is printed is 1.66667, a little too much
