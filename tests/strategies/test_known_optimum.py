"""The saddle problem of `tests.strategies.optimum`: who reaches the saddle point, and who cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edelweiss.federation import FederatedStrategy
from edelweiss.strategies.cdma import Cdma
from edelweiss.strategies.coda import Coda
from edelweiss.strategies.coda_plus import CodaPlus
from edelweiss.strategies.fedgda_gt import FedGdaGt
from edelweiss.strategies.fednest import FedNest
from edelweiss.strategies.fess_gda import FessGda
from edelweiss.strategies.local_sgda import LocalSGDA
from edelweiss.strategies.local_sgda_plus import LocalSGDAPlus
from edelweiss.strategies.momentum_sgda import MomentumLocalSGDA, MomentumLocalSGDAPlus
from edelweiss.strategies.npa import NPA
from edelweiss.strategies.sagda import Sagda
from tests.strategies.optimum import (
    LARGE,
    PARTIAL,
    REACHED,
    ROUNDS,
    SPREAD,
    D,
    K,
    codasca,
    distances,
    drawn_halves,
    floor,
)

pytestmark = pytest.mark.slow  # thousands of steps each

LOCAL_SGDA = LocalSGDA(**LARGE)
STALLING: dict[str, FederatedStrategy] = {
    "local-sgda": LOCAL_SGDA,
    "coda-plus": CodaPlus(local_steps=10, lr=0.03, gamma=0.0),
    # CODASCA itself with a new stage every round: control variates that are always zero.
    "codasca-uncorrected": codasca(stage_iterations=10, stage_decay=1.0),
    "fess-gda": FessGda(**LARGE, smoothing=1.0),
    "local-sgda-plus": LocalSGDAPlus(**LARGE),
    "local-sgda-plus-every-round": LocalSGDAPlus(**LARGE, snapshot_steps=10),
    "momentum-without-inertia": MomentumLocalSGDA(**LARGE, beta=1.0, beta_dual=1.0),
    "momentum-half": MomentumLocalSGDA(**LARGE, beta=0.5, beta_dual=0.5),
    "momentum": MomentumLocalSGDA(**LARGE),
    "momentum-plus": MomentumLocalSGDAPlus(**LARGE),
}
EXACT: dict[str, FederatedStrategy] = {
    "codasca": codasca(),
    "npa": NPA(lr=0.09, lr_dual=0.4),
    # Its one step is on f(x, y) + s/2 ‖x - z‖²: the pull must be gone at the end.
    "fess-gda-of-one-step": FessGda(local_steps=1, lr=0.09, lr_dual=0.4, smoothing=3.0),
    "sagda": Sagda(**LARGE),
    "fedgda-gt": FedGdaGt(**LARGE),
    "cdma": Cdma(**LARGE),
    "cdma-fresh": Cdma(**LARGE, alpha=1.0),
    "fednest": FedNest(**LARGE),
    "fednest-3": FedNest(**LARGE, inner_rounds=3),
}


# ---------------------------------------------------------------------- who does, and who does not


@pytest.mark.parametrize("name", EXACT)
def test_the_saddle_point_is_reached_however_much_the_sites_differ(name: str) -> None:
    path = distances(EXACT[name])
    assert max(path[-1]) < REACHED
    assert path[0][1] > 1, "the start is far away"


@pytest.mark.parametrize("name", STALLING)
def test_without_correction_the_clients_drift_leaves_a_floor(name: str) -> None:
    """The same numbers of rounds and steps, so that the tests of the exact ones would fail for these.

    It grows with the square of the heterogeneity. Of CODA+ the last round is the stage's average: a round more.
    """
    rounds, until = (ROUNDS + 1, -1) if name == "coda-plus" else (ROUNDS, None)
    wild, mild = (distances(STALLING[name], spread, rounds)[:until] for spread in (SPREAD, SPREAD / 10))
    assert 1e5 * REACHED < wild[-1][0] < 1e-4 * D
    assert wild[-1][1] > 100 * REACHED
    assert wild[-1][0] == pytest.approx(wild[-20][0], rel=0.01), "it is a floor"
    assert wild[-1][0] / mild[-1][0] == pytest.approx(100, rel=0.05)


def test_longer_training_does_not_lower_the_floor() -> None:
    assert floor(LOCAL_SGDA, 3 * ROUNDS // 2) == pytest.approx(floor(LOCAL_SGDA), rel=0.01)


def test_snapshots_leave_the_floor_and_inertia_lowers_it() -> None:
    """The smaller βα, the more of a round follows the mean direction that it began with: the clients drift less."""
    names = ("momentum-without-inertia", "momentum-half", "momentum")
    fast, half, slow = (floor(STALLING[name]) for name in names)
    assert floor(LOCAL_SGDA) > 1.05 * fast > 1.5 * half > 5 * slow
    assert floor(STALLING["momentum-plus"]) == pytest.approx(slow, rel=0.05)
    for name in ("local-sgda-plus", "local-sgda-plus-every-round"):
        assert floor(STALLING[name]) == pytest.approx(floor(LOCAL_SGDA), rel=0.1)


# ---------------------------------------------------------------------- memories, silence, a share of the sites


def test_codasca_survives_the_loss_of_a_clients_memory() -> None:
    path = distances(codasca(), rounds=ROUNDS + 20, lost={(20, 3), (20, 7)})
    assert path[20][1] > 10 * path[18][1], "the loss was felt"
    assert max(path[-1]) < REACHED


def test_codasca_survives_a_client_that_does_not_answer() -> None:
    path = distances(codasca(), rounds=ROUNDS + 20, silent={(r, r % K) for r in range(10, 30)})
    assert max(path[-1]) < REACHED


def test_codasca_with_half_of_the_sites_reaches_the_saddle_point() -> None:
    chosen = drawn_halves(0)
    path = distances(codasca(fraction=0.5), rounds=PARTIAL, participants=chosen)
    assert max(path[-1]) < REACHED
    plain = LocalSGDA(**LARGE, fraction=0.5)
    assert min(max(point) for point in distances(plain, rounds=PARTIAL, participants=chosen)) > 1e3 * REACHED


def test_codasca_with_half_of_the_sites_survives_one_that_does_not_answer() -> None:
    """A site that was asked and stays away must not leave a constant error in the server's control variate."""
    chosen = drawn_halves(1)
    silent = {(r, chosen[r - 1][0]) for r in range(5, 20)}
    path = distances(codasca(fraction=0.5), rounds=PARTIAL, participants=chosen, silent=silent)
    assert max(path[-1]) < REACHED


@pytest.mark.parametrize("algorithm", [Sagda, FedGdaGt, Cdma, FedNest])
def test_with_half_of_the_sites_the_draw_of_sites_leaves_a_floor(algorithm: Callable[..., FederatedStrategy]) -> None:
    """The gradient at the global point is that of the sites drawn: unbiased, but noisy."""
    path = distances(algorithm(**LARGE, fraction=0.5), rounds=PARTIAL, participants=drawn_halves(0))
    end = sorted(max(point) for point in path[-50:])[25]
    assert REACHED < end < 100  # of what is drawn, half of the sites' own optimum has ‖y‖² = Σ mean(b)² ≈ 220


@pytest.mark.parametrize("lost", [set(), {(13, 2), (38, 7), (50, 0)}], ids=["kept", "lost"])
def test_coda_in_stages_comes_near_whether_memories_last_or_not(lost: set[tuple[int, int]]) -> None:
    """Stages of 20 rounds whose step sizes shrink; a site that lost its memory averages over what is left."""
    strategy = Coda(local_steps=10, lr=0.05, gamma=0.0, stage_iterations=200, stage_decay=1.5)
    path = distances(strategy, lost=lost)
    assert path[0][1] > 1
    assert max(path[-1]) < 1e-3


# ---------------------------------------------------------------------- the server's step


@pytest.mark.parametrize("server_lr", [0.7, 1.3])
@pytest.mark.parametrize("build", [codasca, lambda **own: Sagda(**LARGE, **own)], ids=["codasca", "sagda"])
def test_the_servers_step_size_changes_the_way_and_not_the_goal(
    build: Callable[..., FederatedStrategy], server_lr: float
) -> None:
    path = distances(build(server_lr=server_lr), rounds=round(1.2 * ROUNDS / min(1, server_lr)))
    assert max(path[-1]) < REACHED
