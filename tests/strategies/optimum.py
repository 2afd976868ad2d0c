"""The saddle problem with very different sites: how far a strategy gets towards the known saddle point.

K = 10, d = 20, float64, no noise. The saddle point is x = y = 0.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import numpy as np

from edelweiss.federation import FederatedStrategy
from edelweiss.problems.saddle import saddle_coefficients
from edelweiss.strategies.codasca import Codasca
from tests.problems.example import given_saddle
from tests.strategies.halves import Arrays, SideBySide, drive

K, D, ROUNDS = 10, 20, 60
PARTIAL = 100  # rounds of half of the sites
SPREAD = 10.0  # s: how much the sites differ
REACHED = 1e-12
STEPS: dict[str, Any] = {"local_steps": 10, "lr": 0.01, "lr_dual": 0.01}
LARGE: dict[str, Any] = STEPS | {"lr": 0.03, "lr_dual": 0.03}  # larger ones would take longer, with half of the sites
LOST = frozenset[tuple[int, int]]


def distances(
    strategy: FederatedStrategy,
    spread: float = SPREAD,
    rounds: int = ROUNDS,
    **options: Sequence[Collection[int]] | Collection[tuple[int, int]],
) -> list[tuple[float, float]]:
    """Return ‖x-x*‖² and ‖y-y*‖² after each round; ``options`` are those of `drive`."""
    slopes, offsets = saddle_coefficients(K, D, spread, 0)
    problem = given_saddle(slopes, offsets)
    oracles = SideBySide(slopes, offsets)
    states = drive(strategy, problem.initial(), oracles, rounds, K, **options)  # type: ignore[arg-type]  # any of them

    def measured(state: Arrays) -> tuple[float, float]:
        metrics = problem.metrics(state["x"], state["y"], None)
        return float(str(metrics["distance-x"])), float(str(metrics["distance-y"]))

    assert not problem.x_star.abs().max() > 1e-12, "the drawn offsets have mean zero"
    return [measured(state) for state in states]


@cache
def distances_of_x(
    strategy: FederatedStrategy, rounds: int = ROUNDS, spread: float = SPREAD, lost: LOST = frozenset()
) -> list[float]:
    """Return ‖x-x*‖² after each round, once for equal arguments."""
    return [x for x, _ in distances(strategy, spread, rounds, lost=lost)]


def floor(strategy: FederatedStrategy, rounds: int = ROUNDS, spread: float = SPREAD) -> float:
    """Return the ‖x-x*‖² at which a strategy stalls, and see to it that it does."""
    path = distances_of_x(strategy, rounds, spread)
    assert abs(path[-1] / path[-20] - 1) < 0.01, "it is still on its way"
    assert 1e5 * REACHED < path[-1] < 1e-4 * D, "a floor is near the saddle point, and not at it"
    return path[-1]


def codasca(**fields: Any) -> Codasca:
    """Return CODASCA with large steps, without its proximal term."""
    return Codasca(**({"local_steps": 10, "lr": 0.03, "gamma": 0.0} | fields))


def drawn_halves(seed: int, rounds: int = PARTIAL, sites: int = K) -> list[list[int]]:
    """Draw half of the sites for each round."""
    random = np.random.default_rng(seed)
    return [sorted(int(k) for k in random.choice(sites, sites // 2, replace=False)) for _ in range(rounds)]
