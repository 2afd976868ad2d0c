"""Where one algorithm becomes another: each row of the table is a pair of runs that must agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from federation import FederatedStrategy
from strategies.coda_plus import CodaPlus
from strategies.codasca import Codasca
from strategies.fedavg import FedAvg
from strategies.local_sgda import LocalSGDA
from tests.reference.games import RegressionGame
from tests.strategies.halves import (
    Arrays,
    OpenOracle,
    RegressionOracle,
    drive,
    regression_oracles,
    saddle_oracles,
)

K, ROUNDS = 4, 6
Path = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Job:
    """An objective and its starting point."""

    start: Arrays
    oracles: OpenOracle
    sites: int

    def run(self, strategy: FederatedStrategy, weights: Sequence[float] | None = None, rounds: int = ROUNDS) -> Path:
        states = drive(strategy, self.start, self.oracles, rounds, self.sites, weights=weights)
        return [(state["x"].numpy(), state["y"].numpy()) for state in states]


def regression(sites: int = K) -> Job:
    game = RegressionGame(K)
    return Job({"x": torch.from_numpy(game.x), "y": torch.from_numpy(game.y)}, regression_oracles(game), sites)


def saddle(slopes: Sequence[float] | None = None, offsets: np.ndarray | None = None, sites: int = K) -> Job:
    random = np.random.default_rng(3)
    start = {name: torch.from_numpy(random.normal(size=6)) for name in ("x", "y")}
    t = random.uniform(0, 2, sites) if slopes is None else np.array(slopes)
    b = random.normal(0, 3, (sites, 6)) if offsets is None else offsets
    return Job(start, saddle_oracles(t, b), sites)


def descent_ascent(job: Job, lr: float, lr_dual: float, steps: int, rounds: int = ROUNDS) -> Path:
    """Centralised: each step follows the mean of all sites' gradients; the point after every ``steps`` steps."""
    x, y = job.start["x"].clone(), job.start["y"].clone()
    path = []
    for r in range(1, rounds + 1):
        opened = [job.oracles(k, r) for k in range(job.sites)]
        for _ in range(steps):
            gradients = [oracle.gradient(x, y) for oracle in opened]
            x = x - lr * sum(gx for gx, _ in gradients) / job.sites
            y = y + lr_dual * sum(gy for _, gy in gradients) / job.sites
        path.append((x.numpy(), y.numpy()))
    return path


def one_site_sgda_is_centralised() -> tuple[Path, Path]:
    job = regression(sites=1)
    return job.run(LocalSGDA(local_steps=5, lr=0.04, lr_dual=0.06)), descent_ascent(job, 0.04, 0.06, 5)


def one_step_sgda_is_centralised() -> tuple[Path, Path]:
    job = regression()
    return job.run(LocalSGDA(local_steps=1, lr=0.04, lr_dual=0.06)), descent_ascent(job, 0.04, 0.06, 1)


def one_step_codasca_is_centralised() -> tuple[Path, Path]:
    # Each client is corrected differently, but the corrections sum to zero.
    job = saddle()
    return job.run(Codasca(local_steps=1, lr=0.05, gamma=0.0)), descent_ascent(job, 0.05, 0.05, 1)


def one_site_codasca_is_sgda() -> tuple[Path, Path]:
    job = regression(sites=1)
    return job.run(Codasca(local_steps=5, lr=0.04, gamma=0.0)), job.run(LocalSGDA(local_steps=5, lr=0.04, lr_dual=0.04))


def one_site_codasca_is_coda_plus() -> tuple[Path, Path]:
    # ... until the last round of the stage, where CODA+ averages.
    job = regression(sites=1)
    codasca, coda_plus = Codasca(local_steps=5, lr=0.04, gamma=0.9), CodaPlus(local_steps=5, lr=0.04, gamma=0.9)
    return job.run(codasca)[:-1], job.run(coda_plus)[:-1]


def uncorrected_codasca_is_sgda() -> tuple[Path, Path]:
    # One round per stage: control variates are zero throughout.
    job = regression()
    stages: dict[str, Any] = {"local_steps": 4, "stage_iterations": 4, "stage_decay": 1.5}
    return (
        job.run(Codasca(**stages, lr=0.04, gamma=0.0)),
        job.run(LocalSGDA(**stages, lr=0.04, lr_dual=0.04)),
    )


def identical_sites_need_no_correction() -> tuple[Path, Path]:
    job = saddle([0.8] * K, np.tile(np.arange(6.0), (K, 1)))
    return job.run(Codasca(local_steps=7, lr=0.03, gamma=0.0)), job.run(LocalSGDA(local_steps=7, lr=0.03, lr_dual=0.03))


def coda_plus_before_the_end_is_sgda() -> tuple[Path, Path]:
    job = regression()
    return (
        job.run(CodaPlus(local_steps=4, lr=0.04, gamma=0.0))[:-1],
        job.run(LocalSGDA(local_steps=4, lr=0.04, lr_dual=0.04))[:-1],
    )


def coda_plus_returns_the_average_of_all_iterates_of_sgda() -> tuple[Path, Path]:
    job, q = regression(), 4
    asked: list[RegressionOracle] = []

    def noting(site: int, server_round: int) -> RegressionOracle:
        oracle = job.oracles(site, server_round)
        assert isinstance(oracle, RegressionOracle)
        asked.append(oracle)
        return oracle

    replies: list[Arrays] = []

    class Noting(LocalSGDA):
        def local_update(self, *arguments):  # type: ignore[no-untyped-def]
            reply, memory = super().local_update(*arguments)
            replies.append(reply)
            return reply, memory

    drive(Noting(local_steps=q, lr=0.04, lr_dual=0.04), job.start, noting, ROUNDS, K)
    # The first gradient of a round is asked for where the round starts, the others after each step but the last.
    iterates = [point for oracle in asked for point in oracle.points[1:]]
    iterates += [(reply["x"], reply["y"]) for reply in replies]
    assert len(iterates) == ROUNDS * K * q
    average = tuple(np.mean([point[i].numpy() for point in iterates], axis=0) for i in (0, 1))  # type: ignore[union-attr]
    return job.run(CodaPlus(local_steps=q, lr=0.04, gamma=0.0))[-1:], [average]


def constant_weights_are_no_weights() -> tuple[Path, Path]:
    job, strategy = regression(), Codasca(local_steps=3, lr=0.04, gamma=0.1)
    return job.run(strategy, weights=[7.0] * K), job.run(strategy)


def a_weight_of_two_is_two_equal_sites() -> tuple[Path, Path]:
    twice = regression(sites=5)
    twins = Job(twice.start, lambda site, r: twice.oracles(site % 4, r), 5)  # site 4 is site 0 again
    strategy = Codasca(local_steps=3, lr=0.04, gamma=0.1)
    return regression().run(strategy, weights=[2.0, 1.0, 1.0, 1.0]), twins.run(strategy)


def smaller_rate_is_smaller_lr() -> tuple[Path, Path]:
    # The second stage of a run is a run from there with divided step sizes.
    job = saddle()
    staged = job.run(LocalSGDA(local_steps=4, lr=0.04, lr_dual=0.06, stage_iterations=12, stage_decay=4.0))
    middle = {"x": torch.from_numpy(staged[2][0]), "y": torch.from_numpy(staged[2][1])}
    later = Job(middle, job.oracles, K).run(LocalSGDA(local_steps=4, lr=0.01, lr_dual=0.015), rounds=3)
    return staged[3:], later


PAIRS: list[Callable[[], tuple[Path, Path]]] = [
    one_site_sgda_is_centralised,
    one_step_sgda_is_centralised,
    one_step_codasca_is_centralised,
    one_site_codasca_is_sgda,
    one_site_codasca_is_coda_plus,
    uncorrected_codasca_is_sgda,
    identical_sites_need_no_correction,
    coda_plus_before_the_end_is_sgda,
    coda_plus_returns_the_average_of_all_iterates_of_sgda,
    constant_weights_are_no_weights,
    a_weight_of_two_is_two_equal_sites,
    smaller_rate_is_smaller_lr,
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_agree(pair: Callable[[], tuple[Path, Path]]) -> None:
    left, right = pair()
    assert len(left) == len(right) > 0
    for (x, y), (other_x, other_y) in zip(left, right, strict=True):
        np.testing.assert_allclose(x, other_x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(y, other_y, rtol=0, atol=1e-10)
    assert all(np.abs(after[0] - before[0]).max() > 1e-8 for before, after in pairwise(left)), "nothing moved"


@pytest.mark.parametrize("sites", [1, 4])
def test_fedavg_with_one_site_or_one_step_is_sgd(sites: int) -> None:
    game = RegressionGame(K)
    steps = 5 if sites == 1 else 1
    states = drive(
        FedAvg(local_steps=steps, lr=0.05), {"x": torch.from_numpy(game.x)}, regression_oracles(game), ROUNDS, sites
    )
    x = game.x
    for r, state in enumerate(states, 1):
        for t in range(steps):
            x = x - 0.05 * np.mean([game.gradients(k, x, np.zeros(0), r, t)[0] for k in range(sites)], axis=0)
        np.testing.assert_allclose(state["x"].numpy(), x, rtol=0, atol=1e-12)


def test_the_control_variates_matter_where_sites_differ_and_take_several_steps() -> None:
    """The counterpart of the table: without its degenerate conditions the two methods part."""
    job = saddle()
    corrected = job.run(Codasca(local_steps=7, lr=0.03, gamma=0.0))
    plain = job.run(LocalSGDA(local_steps=7, lr=0.03, lr_dual=0.03))
    np.testing.assert_allclose(corrected[0][0], plain[0][0], rtol=0, atol=1e-12)  # the first round has none yet
    assert np.abs(corrected[-1][0] - plain[-1][0]).max() > 1e-6


def test_with_one_step_and_equal_curvature_every_client_takes_the_average_step() -> None:
    job = saddle([0.8] * K)
    answers: list[list[Arrays]] = []

    class Noting(Codasca):
        def aggregate(self, state, replies, turn):  # type: ignore[no-untyped-def]
            replies = list(replies)
            answers.append([reply.arrays for reply in replies])
            return super().aggregate(state, iter(replies), turn)

    job.run(Noting(local_steps=1, lr=0.05, gamma=0.0))

    def spread(arrays: list[Arrays], name: str) -> float:
        return float((torch.stack([a[name] for a in arrays]) - arrays[0][name]).abs().max())

    assert spread(answers[0], "y") > 0.1, "without control variates yet, the clients part"
    for arrays in answers[1:]:
        assert spread(arrays, "x") < 1e-12
        assert spread(arrays, "y") < 1e-12


@pytest.mark.parametrize("server_lr", [0.25, 0.5, 2.0])
def test_the_servers_step_scales_the_displacement(server_lr: float) -> None:
    job = saddle()
    (x, y), (x0, y0) = job.run(Codasca(server_lr=server_lr, lr=0.01), rounds=1)[0], (job.start["x"], job.start["y"])
    one_x, one_y = job.run(Codasca(server_lr=1.0, lr=0.01), rounds=1)[0]
    np.testing.assert_allclose(x - x0.numpy(), server_lr * (one_x - x0.numpy()), rtol=0, atol=1e-12)
    np.testing.assert_allclose(y - y0.numpy(), server_lr * (one_y - y0.numpy()), rtol=0, atol=1e-12)


def test_the_proximal_term_keeps_a_stage_near_its_start() -> None:
    """γ pulls x towards x_ref: the larger, the shorter the way of a stage; it leaves the dual's equation alone."""
    job = saddle(slopes=[0.0] * K)  # without coupling, y does not see x at all
    paths = [job.run(Codasca(lr=0.02, gamma=gamma)) for gamma in (0.0, 5.0, 20.0)]
    moved = [float(np.linalg.norm(path[-1][0] - job.start["x"].numpy())) for path in paths]
    assert moved[0] > 1.2 * moved[1] > 1.2 * 1.2 * moved[2]
    for path in paths[1:]:
        np.testing.assert_allclose(path[-1][1], paths[0][-1][1], rtol=0, atol=1e-12)
