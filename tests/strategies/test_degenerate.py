"""Where one algorithm becomes another: each row of the table is a pair of runs that must agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.federation import Oracle
from edelweiss.strategies.cdma import Cdma
from edelweiss.strategies.coda_plus import CodaPlus
from edelweiss.strategies.codasca import Codasca
from edelweiss.strategies.fedavg import FedAvg
from edelweiss.strategies.fedgda_gt import FedGdaGt
from edelweiss.strategies.fednest import FedNest
from edelweiss.strategies.fess_gda import FessGda
from edelweiss.strategies.local_sgda import LocalSGDA
from edelweiss.strategies.local_sgda_plus import LocalSGDAPlus
from edelweiss.strategies.momentum_sgda import MomentumLocalSGDA, MomentumLocalSGDAPlus
from edelweiss.strategies.npa import NPA
from edelweiss.strategies.sagda import Sagda
from tests.reference.games import RegressionGame
from tests.strategies.halves import Arrays, RegressionOracle, drive, regression_oracles
from tests.strategies.jobs import ROUNDS, Job, Pair, Path, assert_agree, descent_ascent, regression, saddle
from tests.strategies.settings import K

Both = tuple[Path, Path]
PAIRS: list[Pair] = []


def pair(runs: Pair) -> Pair:
    """Put two runs that must agree into the table."""
    PAIRS.append(runs)
    return runs


@pair
def one_site_sgda_is_centralised() -> Both:
    job = regression(sites=1)
    return job.run(LocalSGDA(local_steps=5, lr=0.04, lr_dual=0.06)), descent_ascent(job, 0.04, 0.06, 5)


@pair
def one_step_sgda_is_centralised() -> Both:
    job = regression()
    return job.run(LocalSGDA(local_steps=1, lr=0.04, lr_dual=0.06)), descent_ascent(job, 0.04, 0.06, 1)


@pair
def one_step_codasca_is_centralised() -> Both:
    # Each client is corrected differently, but the corrections sum to zero.
    job = saddle()
    return job.run(Codasca(local_steps=1, lr=0.05, gamma=0.0)), descent_ascent(job, 0.05, 0.05, 1)


@pair
def one_site_codasca_is_sgda() -> Both:
    job = regression(sites=1)
    return job.run(Codasca(local_steps=5, lr=0.04, gamma=0.0)), job.run(LocalSGDA(local_steps=5, lr=0.04, lr_dual=0.04))


@pair
def one_site_codasca_is_coda_plus() -> Both:
    # ... until the last round of the stage, where CODA+ averages.
    job = regression(sites=1)
    codasca, coda_plus = Codasca(local_steps=5, lr=0.04, gamma=0.9), CodaPlus(local_steps=5, lr=0.04, gamma=0.9)
    return job.run(codasca)[:-1], job.run(coda_plus)[:-1]


@pair
def uncorrected_codasca_is_sgda() -> Both:
    # One round per stage: control variates are zero throughout.
    job = regression()
    stages: dict[str, Any] = {"local_steps": 4, "stage_iterations": 4, "stage_decay": 1.5}
    return (job.run(Codasca(**stages, lr=0.04, gamma=0.0)), job.run(LocalSGDA(**stages, lr=0.04, lr_dual=0.04)))


@pair
def identical_sites_need_no_correction() -> Both:
    job = saddle([0.8] * K, np.tile(np.arange(6.0), (K, 1)))
    return job.run(Codasca(local_steps=7, lr=0.03, gamma=0.0)), job.run(LocalSGDA(local_steps=7, lr=0.03, lr_dual=0.03))


@pair
def coda_plus_before_the_end_is_sgda() -> Both:
    job = regression()
    return (
        job.run(CodaPlus(local_steps=4, lr=0.04, gamma=0.0))[:-1],
        job.run(LocalSGDA(local_steps=4, lr=0.04, lr_dual=0.04))[:-1],
    )


@pair
def coda_plus_returns_the_average_of_all_iterates_of_sgda() -> Both:
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


@pair
def smaller_rate_is_smaller_lr() -> Both:
    # The second stage of a run is a run from there with divided step sizes.
    job = saddle()
    staged = job.run(LocalSGDA(local_steps=4, lr=0.04, lr_dual=0.06, stage_iterations=12, stage_decay=4.0))
    middle = {"x": torch.from_numpy(staged[2][0]), "y": torch.from_numpy(staged[2][1])}
    later = Job(middle, job.oracles, K).run(LocalSGDA(local_steps=4, lr=0.01, lr_dual=0.015), rounds=3)
    return staged[3:], later


# ---------------------------------------------------------------------- momentum, snapshots, one step


@pair
def snapshots_of_every_step_are_x_itself() -> Both:
    job, common = regression(), {"local_steps": 1, "lr": 0.04, "lr_dual": 0.06}
    return job.run(LocalSGDAPlus(**common, snapshot_steps=1)), job.run(LocalSGDA(**common))  # type: ignore[arg-type]


@pair
def a_snapshot_does_not_matter_where_the_dual_does_not_see_x() -> Both:
    job, common = saddle(slopes=[0.0] * K), {"local_steps": 4, "lr": 0.04, "lr_dual": 0.06}
    return job.run(LocalSGDAPlus(**common, snapshot_steps=12)), job.run(LocalSGDA(**common))  # type: ignore[arg-type]


@pair
def nor_with_momentum() -> Both:
    job, common = saddle(slopes=[0.0] * K), {"local_steps": 4, "lr": 0.04, "lr_dual": 0.06, "beta": 0.3}
    return job.run(MomentumLocalSGDAPlus(**common)), job.run(MomentumLocalSGDA(**common))  # type: ignore[arg-type]


FRESH: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "beta_dual": 2.0}  # βα = 1: a direction is the last gradient


@pair
def one_site_without_inertia_is_sgda() -> Both:
    job = saddle(sites=1)
    momentum = MomentumLocalSGDA(local_steps=5, lr=0.08, lr_dual=0.12, **FRESH)
    return job.run(momentum), job.run(LocalSGDA(local_steps=5, lr=0.04, lr_dual=0.06))


@pair
def one_step_without_inertia_is_sgda() -> Both:
    # The mean of the gradients at the clients' own points is that at their mean, as all have the same curvature.
    job = saddle(slopes=[0.8] * K)
    momentum = MomentumLocalSGDA(local_steps=1, lr=0.08, lr_dual=0.12, **FRESH)
    return job.run(momentum), job.run(LocalSGDA(local_steps=1, lr=0.04, lr_dual=0.06))


@pair
def only_products_with_alpha_matter() -> Both:
    job = regression()
    scaled = MomentumLocalSGDA(local_steps=4, lr=0.08, lr_dual=0.12, alpha=0.5, beta=0.6, beta_dual=1.0)
    plain = MomentumLocalSGDA(local_steps=4, lr=0.04, lr_dual=0.06, alpha=1.0, beta=0.3, beta_dual=0.5)
    return job.run(scaled), job.run(plain)


@pair
def npa_is_sgda_of_one_step() -> Both:
    job = regression()
    return job.run(NPA(lr=0.04, lr_dual=0.06)), job.run(LocalSGDA(local_steps=1, lr=0.04, lr_dual=0.06))


# ---------------------------------------------------------------------- smoothing


@pair
def without_smoothing_fess_gda_is_sgda() -> Both:
    job, common = regression(), {"local_steps": 4, "lr": 0.04, "lr_dual": 0.06}
    return job.run(FessGda(**common, smoothing=0.0)), job.run(LocalSGDA(**common))  # type: ignore[arg-type]


@pair
def one_step_fess_gda_is_smoothed_descent_ascent() -> Both:
    # That of f(x, y) + s/2 ‖x - z‖², z ← z + β (x - z), whose gradients only the test forms.
    job, lr, lr_dual, s, beta = saddle(sites=1), 0.04, 0.06, 5.0, 0.3
    x, y = job.start["x"].clone(), job.start["y"].clone()
    z, path = x.clone(), []
    for r in range(1, ROUNDS + 1):
        gx, gy = job.oracles(0, r).gradient(x, y)
        x, y = x - lr * (gx + s * (x - z)), y + lr_dual * gy
        z = z + beta * (x - z)
        path.append((x.numpy(), y.numpy()))
    return job.run(FessGda(local_steps=1, lr=lr, lr_dual=lr_dual, smoothing=s, beta=beta)), path


# ---------------------------------------------------------------------- variance reduction


def sgda(steps: int, lr: float, lr_dual: float) -> LocalSGDA:
    return LocalSGDA(local_steps=steps, lr=lr, lr_dual=lr_dual)


@pair
def one_site_sagda_is_sgda() -> Both:
    job = regression(sites=1)
    return job.run(Sagda(local_steps=5, lr=0.04, lr_dual=0.06)), job.run(sgda(5, 0.04, 0.06))


@pair
def one_step_sagda_is_centralised() -> Both:
    job = saddle()
    return job.run(Sagda(local_steps=1, lr=0.04, lr_dual=0.06)), descent_ascent(job, 0.04, 0.06, 1)


@pair
def sagda_of_identical_sites_is_sgda() -> Both:
    job = saddle([0.8] * K, np.tile(np.arange(6.0), (K, 1)))
    return job.run(Sagda(local_steps=7, lr=0.03, lr_dual=0.05)), job.run(sgda(7, 0.03, 0.05))


@pair
def sagda_without_control_variates_is_sgda() -> Both:
    class Uncontrolled(Sagda):
        def local_update(self, sent: Arrays, memory: Arrays, *rest: Any) -> tuple[Arrays, Arrays]:
            zeros = {name: torch.zeros_like(vector) for name, vector in sent.items()}
            sent = sent | {name: zeros[name] for name in ("vx", "vy") if name in sent}
            return super().local_update(sent, {}, *rest)

    job = regression()
    return job.run(Uncontrolled(local_steps=4, lr=0.04, lr_dual=0.06)), job.run(sgda(4, 0.04, 0.06))


@pair
def one_step_fedgda_gt_is_centralised() -> Both:
    job = saddle()
    return job.run(FedGdaGt(local_steps=1, lr=0.04, lr_dual=0.06)), descent_ascent(job, 0.04, 0.06, 1)


@pair
def one_site_fedgda_gt_is_sgda_with_full_gradients() -> Both:
    class Full(LocalSGDA):
        def gradients(self, x: Tensor, y: Tensor, sent: Arrays, oracle: Oracle) -> tuple[Tensor, Tensor]:
            return oracle.full_gradient(x, y)

    job = regression(sites=1)
    return job.run(FedGdaGt(local_steps=5, lr=0.04, lr_dual=0.06)), job.run(Full(local_steps=5, lr=0.04, lr_dual=0.06))


@pair
def fedgda_gt_without_noise_is_sagda() -> Both:
    job = saddle()
    return job.run(FedGdaGt(local_steps=6, lr=0.03, lr_dual=0.05)), job.run(Sagda(local_steps=6, lr=0.03, lr_dual=0.05))


@pair
def one_site_cdma_without_noise_is_sgda() -> Both:
    job = saddle(sites=1)
    return job.run(Cdma(local_steps=5, lr=0.04, lr_dual=0.06)), job.run(sgda(5, 0.04, 0.06))


@pair
def one_step_cdma_without_noise_is_centralised() -> Both:
    job = saddle()
    return job.run(Cdma(local_steps=1, lr=0.04, lr_dual=0.06)), descent_ascent(job, 0.04, 0.06, 1)


@pair
def one_step_cdma_with_fresh_gradients_only_is_centralised() -> Both:
    job = regression()
    return job.run(Cdma(local_steps=1, lr=0.04, lr_dual=0.06, alpha=1.0)), descent_ascent(job, 0.04, 0.06, 1)


@pair
def without_noise_alpha_plays_no_part() -> Both:
    job = saddle()
    cdma = [Cdma(local_steps=6, lr=0.03, lr_dual=0.05, alpha=alpha) for alpha in (0.1, 1.0)]
    return job.run(cdma[0]), job.run(cdma[1])


@pair
def without_noise_cdma_is_sagda() -> Both:
    job = saddle()
    return job.run(Cdma(local_steps=6, lr=0.03, lr_dual=0.05)), job.run(Sagda(local_steps=6, lr=0.03, lr_dual=0.05))


def alternating(job: Job, lr: float, lr_dual: float, descents: int, ascents: int) -> Path:
    """Centralised and without noise: so many steps on y, then so many on x."""
    x, y = job.start["x"].clone(), job.start["y"].clone()
    path = []
    for r in range(1, 7):
        for step in range(ascents + descents):
            gradients = [job.oracles(k, r).gradient(x, y) for k in range(job.sites)]
            if step < ascents:
                y = y + lr_dual * sum(gy for _, gy in gradients) / job.sites
            else:
                x = x - lr * sum(gx for gx, _ in gradients) / job.sites
        path.append((x.numpy(), y.numpy()))
    return path


@pair
def one_step_fednest_alternates() -> Both:
    job = saddle()
    return job.run(FedNest(local_steps=1, lr=0.04, lr_dual=0.06, inner_rounds=3)), alternating(job, 0.04, 0.06, 1, 3)


@pair
def one_site_fednest_alternates() -> Both:
    job = saddle(sites=1)
    return job.run(FedNest(local_steps=4, lr=0.04, lr_dual=0.06, inner_rounds=2)), alternating(job, 0.04, 0.06, 4, 8)


# ---------------------------------------------------------------------- the table, and its counterparts


@pytest.mark.parametrize("runs", PAIRS, ids=lambda runs: runs.__name__)
def test_agree(runs: Pair) -> None:
    assert_agree(runs)


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
        def aggregate(self, state, replies, context):  # type: ignore[no-untyped-def]
            replies = list(replies)
            answers.append([reply.arrays for reply in replies])
            return super().aggregate(state, iter(replies), context)

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
