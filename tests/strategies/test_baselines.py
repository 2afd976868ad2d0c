"""The baselines for plain minimisation: their equations, what they become at a limit, and where they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.federation import FederatedStrategy, RoundContext, Site
from edelweiss.strategies.fedavg import FedAvg
from edelweiss.strategies.feddyn import FedDyn
from edelweiss.strategies.fedopt import FedAdam, FedOpt, FedYogi
from edelweiss.strategies.fedprox import FedProx
from edelweiss.strategies.scaffold import Scaffold
from tests.reference import baselines as reference
from tests.reference.games import RegressionGame, Vector
from tests.strategies.halves import Arrays, drive, regression_oracles
from tests.strategies.optimum import drawn_halves
from tests.strategies.settings import PLAN, ROUNDS, STAGES, Everyone, K, by_turnout, share, torched


def driven(strategy: FederatedStrategy, some: Everyone = None, weights: list[float] | None = None) -> list[Arrays]:
    """Return the server's states on the regression game, through the wire."""
    game = RegressionGame(K)
    oracles = regression_oracles(game)
    return drive(strategy, torched(game.x), oracles, ROUNDS, K, weights=weights, participants=some, wire=True)


def require_equal(states: Sequence[Arrays], history: Sequence[Vector]) -> None:
    """Compare x after each round, and see to it that it moved until the end."""
    for state, x in zip(states, history, strict=True):
        np.testing.assert_allclose(state["x"].numpy(), x, rtol=0, atol=1e-9)
    assert np.isfinite(history[-1]).all()
    assert np.abs(history[-1] - history[-2]).max() > 1e-6


# ---------------------------------------------------------------------- where they end: quadratics of unlike sites

SITES, REACHED = 6, 1e-8
CURVATURES = torch.from_numpy(np.random.default_rng(1).uniform(0.2, 3.0, (SITES, 4)))
CENTRES = torch.from_numpy(np.random.default_rng(2).normal(0, 5, (SITES, 4)))
OPTIMUM = (CURVATURES * CENTRES).sum(0) / CURVATURES.sum(0)
"""Of mean_k f_k, f_k = ½ Σ_i a_ki (x_i - b_ki)²: the sites differ in their minima and in their curvatures."""

LOCAL: dict[str, Any] = {"local_steps": 10, "lr": 0.1}


class Quadratic:
    """A site of these, without noise."""

    def __init__(self, site: int) -> None:
        self.curvature, self.centre = CURVATURES[site], CENTRES[site]

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: None = None) -> tuple[Tensor, None]:
        return self.curvature * (x - self.centre), None


def far(strategy: FederatedStrategy, rounds: int = 120, **options: Any) -> float:
    """Return ‖x - x*‖ in the end; ``options`` are those of `drive`."""
    start = {"x": torch.full((4,), 9.0, dtype=torch.float64)}
    states = drive(strategy, start, lambda site, _: Quadratic(site), rounds, SITES, **options)  # type: ignore[arg-type, return-value]
    return float((states[-1]["x"] - OPTIMUM).norm())


class Flipped(Scaffold):
    """SCAFFOLD with the sign of its correction wrong."""

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        sent = super().broadcast(state, context, site)
        return sent | {"c": -sent["c"]} if "c" in sent else sent


EXACT: dict[str, FederatedStrategy] = {
    "scaffold": Scaffold(**LOCAL),
    "scaffold-server-lr": Scaffold(**LOCAL, server_lr=0.6),
    "scaffold-momentum": Scaffold(**LOCAL, momentum=0.5),
    "feddyn": FedDyn(**LOCAL, alpha=1.0),
    "feddyn-small-alpha": FedDyn(**LOCAL, alpha=0.5),
    "feddyn-momentum": FedDyn(**LOCAL, alpha=1.0, momentum=0.5),
}
STALLING: dict[str, FederatedStrategy] = {
    "fedavg": FedAvg(**LOCAL),
    "fedprox": FedProx(**LOCAL, mu=1.0),
    # Stages of one round: what a site learned is forgotten.
    "scaffold-uncorrected": Scaffold(**LOCAL, stage_iterations=10, stage_decay=1.0),
    "scaffold-flipped": Flipped(**LOCAL),
    "feddyn-uncorrected": FedDyn(**LOCAL, alpha=1.0, stage_iterations=10, stage_decay=1.0),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_correction_reaches_the_exact_optimum_of_unlike_sites(name: str) -> None:
    assert far(EXACT[name]) < REACHED


@pytest.mark.parametrize("name", STALLING)
def test_without_it_or_with_a_wrong_sign_local_steps_leave_a_floor(name: str) -> None:
    assert not far(STALLING[name]) < 0.1


PARTIAL: dict[str, FederatedStrategy] = {
    "scaffold": Scaffold(**LOCAL, fraction=0.5, server_lr=0.5),
    "feddyn": FedDyn(**LOCAL, alpha=1.0, fraction=0.5),
}
HALVES = drawn_halves(0, 170, SITES)
TROUBLE: dict[str, dict[str, Any]] = {
    "none": {},
    "lost-memories": {"lost": {(r, HALVES[r - 1][0]) for r in (5, 6, 30)}},
    "silent-sites": {"silent": {(r, HALVES[r - 1][1]) for r in range(5, 40)}},
}


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("name", PARTIAL)
def test_so_it_does_with_half_of_the_sites_whatever_gets_lost(name: str, trouble: str) -> None:
    assert far(PARTIAL[name], 170, participants=HALVES, **TROUBLE[trouble]) < REACHED


@pytest.mark.parametrize("name", PARTIAL)
def test_with_all_sites_a_lost_memory_or_a_silent_site_leaves_no_error(name: str) -> None:
    strategy = EXACT[name]
    assert far(strategy, 150, lost={(20, 1), (21, 3)}, silent={(r, r % SITES) for r in range(30, 40)}) < REACHED


# ---------------------------------------------------------------------- FedProx


@by_turnout
def test_fedprox(some: Everyone, weights: list[float] | None) -> None:
    states = driven(FedProx(**STAGES, lr=0.05, mu=0.7, fraction=share(some)), some, weights)
    game = RegressionGame(K)
    require_equal(states, reference.fedprox(game, game.x, PLAN, 0.05, 0.7, weights, some))


@pytest.mark.parametrize("own", [{}, {"momentum": 0.5, "weight_decay": 0.1, "decay": 0.9}], ids=["plain", "sgd"])
def test_fedprox_without_its_term_is_fedavg_to_the_bit(own: dict[str, float]) -> None:
    prox, plain = (driven(one(**STAGES, lr=0.05, **own)) for one in (lambda **keys: FedProx(mu=0.0, **keys), FedAvg))
    assert all(torch.equal(one["x"], other["x"]) for one, other in zip(prox, plain, strict=True))


def test_the_larger_mu_the_nearer_clients_stay_to_what_they_were_sent() -> None:
    start = torch.from_numpy(RegressionGame(K).x)
    moved = [
        (driven(FedProx(local_steps=12, lr=0.05, mu=mu))[0]["x"] - start).norm().item() for mu in (0.0, 1.0, 4.0, 15.0)
    ]
    assert moved[0] > 1.1 * moved[1] > 1.1**2 * moved[2] > 1.1**3 * moved[3]


# ---------------------------------------------------------------------- SCAFFOLD


@by_turnout
@pytest.mark.parametrize(
    "sgd", [{}, {"momentum": 0.6, "weight_decay": 0.3}], ids=["plain", "with-momentum-and-weight-decay"]
)
def test_scaffold(sgd: dict[str, float], some: Everyone, weights: list[float] | None) -> None:
    states = driven(Scaffold(**STAGES, lr=0.03, server_lr=1.2, fraction=share(some), **sgd), some, weights)
    game, own = RegressionGame(K), (sgd.get("momentum", 0.0), sgd.get("weight_decay", 0.0))
    require_equal(states, reference.scaffold(game, game.x, PLAN, 0.03, 1.2, *own, weights, some))


def test_a_site_by_itself_needs_no_correction() -> None:
    game = RegressionGame(K)
    one, other = (
        drive(strategy, torched(game.x), regression_oracles(game), ROUNDS, 1)
        for strategy in (Scaffold(local_steps=5, lr=0.05), FedAvg(local_steps=5, lr=0.05))
    )
    torch.testing.assert_close(one[-1]["x"], other[-1]["x"], rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- FedDyn


@by_turnout
def test_feddyn(some: Everyone, weights: list[float] | None) -> None:
    states = driven(FedDyn(**STAGES, lr=0.05, alpha=0.4, fraction=share(some)), some, weights)
    game = RegressionGame(K)
    require_equal(states, reference.feddyn(game, game.x, PLAN, 0.05, 0.4, weights, some))


# ---------------------------------------------------------------------- FedAdam, FedYogi


@by_turnout
@pytest.mark.parametrize(("algorithm", "kind"), [(FedAdam, "adam"), (FedYogi, "yogi")])
def test_fedopt(algorithm: type[FedOpt], kind: str, some: Everyone, weights: list[float] | None) -> None:
    own: dict[str, float] = {"lr": 0.03, "server_lr": 0.2, "beta1": 0.7, "beta2": 0.8, "tau": 0.05}
    states = driven(algorithm(**STAGES, **own, fraction=share(some)), some, weights)  # type: ignore[arg-type]
    game = RegressionGame(K)
    require_equal(states, reference.fedopt(game, game.x, PLAN, 0.03, 0.2, (0.7, 0.8), 0.05, kind, weights, some))


@pytest.mark.parametrize(("algorithm", "beta2", "divisor"), [(FedAdam, 0.0, 1), (FedYogi, 0.99, 2)])
def test_without_adaptation_or_momentum_the_server_only_scales_fedavgs_step(
    algorithm: type[FedOpt], beta2: float, divisor: int
) -> None:
    """Where τ is large against every step, √v is 0 for Adam without a memory, and stays τ for Yogi."""
    tau, scale = 1e11, 0.7
    own = {"beta1": 0.0, "beta2": beta2, "tau": tau, "server_lr": scale * divisor * tau}
    moved, start = driven(algorithm(local_steps=4, lr=0.05, **own)), torch.from_numpy(RegressionGame(K).x)  # type: ignore[arg-type]
    plain = driven(FedAvg(local_steps=4, lr=0.05))
    torch.testing.assert_close(moved[0]["x"] - start, scale * (plain[0]["x"] - start), rtol=0, atol=1e-9)
    whole = driven(algorithm(local_steps=4, lr=0.05, **own | {"server_lr": divisor * tau}))  # type: ignore[arg-type]
    for one, other in zip(whole, plain, strict=True):
        torch.testing.assert_close(one["x"], other["x"], rtol=0, atol=1e-9)


def test_without_averaging_of_squares_a_step_has_the_size_of_the_servers() -> None:
    """β1 = β2 = 0 and τ → 0: every coordinate moves by η in the direction of its mean step."""
    states = driven(FedAdam(local_steps=4, lr=0.05, server_lr=0.01, beta1=0.0, beta2=0.0, tau=1e-12))
    moved = (states[-1]["x"] - states[-2]["x"]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-6, atol=0)


def test_yogis_second_moment_falls_more_slowly_than_adams() -> None:
    adam, yogi = (one(beta2=0.9) for one in (FedAdam, FedYogi))
    v, squares = torch.tensor([1.0, 0.01]), torch.tensor([0.01, 1.0])
    torch.testing.assert_close(adam.second_moment(v, squares.clone()), torch.tensor([0.901, 0.109]))
    torch.testing.assert_close(yogi.second_moment(v, squares.clone()), torch.tensor([0.999, 0.11]))
