"""The deterministic saddle problem with very different sites: who reaches the saddle point, and who cannot.

K = 10, d = 20, 10 local steps of 0.01, 200 rounds, no proximal term, float64. The saddle point is x = y = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytest

from federation import FederatedStrategy
from problems.saddle import saddle_coefficients
from strategies.coda_plus import CodaPlus
from strategies.codasca import Codasca
from strategies.local_sgda import LocalSGDA
from tests.problems.example import given_saddle
from tests.strategies.halves import Arrays, drive, saddle_oracles

K, D, ROUNDS = 10, 20, 200
PARTIAL = 300  # rounds of half of the sites
REACHED = 1e-12


def distances(
    strategy: FederatedStrategy,
    spread: float = 10.0,
    rounds: int = ROUNDS,
    **options: Sequence[Collection[int]] | Collection[tuple[int, int]],
) -> list[tuple[float, float]]:
    """Return ‖x-x*‖² and ‖y-y*‖² after each round."""
    slopes, offsets = saddle_coefficients(K, D, spread, 0)
    problem = given_saddle(slopes, offsets)
    states = drive(strategy, problem.initial(), saddle_oracles(slopes, offsets), rounds, K, **options)  # type: ignore[arg-type]

    def measured(state: Arrays) -> tuple[float, float]:
        metrics = problem.metrics(state["x"], state["y"], None)
        return float(str(metrics["distance-x"])), float(str(metrics["distance-y"]))

    assert not problem.x_star.abs().max() > 1e-12, "the drawn offsets have mean zero"
    return [measured(state) for state in states]


def codasca(**fields: float) -> Codasca:
    return Codasca(**({"local_steps": 10, "lr": 0.01, "gamma": 0.0} | fields))  # type: ignore[arg-type]


STALLING: dict[str, Callable[[], FederatedStrategy]] = {
    "local-sgda": lambda: LocalSGDA(local_steps=10, lr=0.01, lr_dual=0.01),
    "coda-plus": lambda: CodaPlus(local_steps=10, lr=0.01, gamma=0.0),
    # CODASCA itself with a new stage every round: control variates that are always zero.
    "codasca-uncorrected": lambda: codasca(stage_iterations=10, stage_decay=1.0),
}


@pytest.fixture(scope="module")
def floors() -> dict[str, tuple[float, float]]:
    """Where the uncorrected methods end; of CODA+ the last iterate, not the stage's average that comes after it."""
    return {name: distances(build(), rounds=ROUNDS + 1)[ROUNDS - 1] for name, build in STALLING.items()}


def test_codasca_reaches_the_saddle_point() -> None:
    path = distances(codasca())
    assert path[-1][0] < REACHED
    assert path[-1][1] < REACHED
    assert path[0][1] > 1, "the start is far away"


@pytest.mark.parametrize("name", STALLING)
def test_without_correction_the_clients_drift_leaves_a_floor(name: str, floors: dict[str, tuple[float, float]]) -> None:
    """The same numbers of rounds and steps, so that the test of CODASCA would fail for these."""
    x, y = floors[name]
    assert 1e-6 < x < 5e-5
    assert y > REACHED


def test_the_floor_grows_with_the_square_of_the_heterogeneity(floors: dict[str, tuple[float, float]]) -> None:
    milder = distances(STALLING["local-sgda"](), spread=1.0)
    assert floors["local-sgda"][0] / milder[-1][0] == pytest.approx(100, rel=0.05)


def test_longer_training_does_not_lower_the_floor(floors: dict[str, tuple[float, float]]) -> None:
    longer = distances(STALLING["local-sgda"](), rounds=3 * ROUNDS // 2)
    assert longer[-1][0] == pytest.approx(floors["local-sgda"][0], rel=0.01)


def test_codasca_survives_the_loss_of_a_clients_memory() -> None:
    path = distances(codasca(), rounds=ROUNDS + 40, lost={(40, 3), (40, 7)})
    assert path[40][1] > 10 * path[38][1], "the loss was felt"
    assert max(path[-1]) < REACHED


def test_codasca_survives_a_client_that_does_not_answer() -> None:
    path = distances(codasca(), rounds=ROUNDS + 40, silent={(r, r % K) for r in range(20, 40)})
    assert max(path[-1]) < REACHED


def test_codasca_with_half_of_the_sites_reaches_the_saddle_point() -> None:
    random = np.random.default_rng(0)
    chosen = [sorted(random.choice(K, K // 2, replace=False)) for _ in range(PARTIAL)]
    path = distances(codasca(fraction=0.5), rounds=PARTIAL, participants=chosen)
    assert max(path[-1]) < REACHED
    plain = LocalSGDA(local_steps=10, lr=0.01, lr_dual=0.01, fraction=0.5)
    assert min(max(point) for point in distances(plain, rounds=PARTIAL, participants=chosen)) > 1e3 * REACHED


def test_codasca_with_half_of_the_sites_survives_one_that_does_not_answer() -> None:
    """A site that was asked and stays away must not leave a constant error in the server's control variate."""
    random = np.random.default_rng(1)
    rounds = PARTIAL
    chosen = [sorted(int(k) for k in random.choice(K, K // 2, replace=False)) for _ in range(rounds)]
    silent = {(r, chosen[r - 1][0]) for r in range(5, 30)}
    path = distances(codasca(fraction=0.5), rounds=rounds, participants=chosen, silent=silent)
    assert max(path[-1]) < REACHED


@pytest.mark.parametrize("server_lr", [0.7, 1.3])
def test_the_servers_step_size_changes_the_way_and_not_the_goal(server_lr: float) -> None:
    path = distances(codasca(server_lr=server_lr), rounds=round(1.2 * ROUNDS / min(1, server_lr)))
    assert max(path[-1]) < REACHED
