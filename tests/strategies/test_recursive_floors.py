"""What recursive momentum does on the saddle problem of tests.strategies.optimum: floors, schedules, limits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edelweiss.federation import DivergedError, FederatedStrategy
from edelweiss.server_app import simulate
from edelweiss.strategies.adafgda import AdaFgda
from edelweiss.strategies.fgda import Fgda
from edelweiss.strategies.fmgda import Fmgda
from edelweiss.strategies.local_sgda import LocalSGDA
from tests.said import has
from tests.strategies.optimum import SPREAD, STEPS, D, distances_of_x, floor
from tests.strategies.optimum import K as SITES

pytestmark = pytest.mark.slow  # thousands of steps each

PLAIN_SLOW = LocalSGDA(**STEPS)
SOON = 120  # rounds


def slow(algorithm: type[Fmgda | Fgda], **keys: Any) -> FederatedStrategy:
    return algorithm(**(STEPS | keys))


@pytest.mark.parametrize("algorithm", [Fmgda, Fgda])
def test_the_floor_is_far_below_local_sgdas_and_falls_with_the_weights(algorithm: type[Fmgda | Fgda]) -> None:
    """With about the square of α = β, once they are small: each site's own point carries along what sites differ by."""
    plain = floor(PLAIN_SLOW, SOON)
    weights = (0.1, 0.03, 0.01)
    floors = [distances_of_x(slow(algorithm, fresh_weight=w, fresh_weight_dual=w), SOON)[-1] for w in weights]
    assert floor(slow(algorithm), SOON) == floors[0], "0.1 is the default, and it has stalled"
    assert plain > 5 * floors[0]
    assert all(high > 5 * low for high, low in pairwise(floors))


@pytest.mark.parametrize("algorithm", [Fmgda, Fgda])
def test_under_the_cube_root_schedule_both_keep_falling(algorithm: type[Fmgda | Fgda]) -> None:
    """With α² η² or so, so with t^(-2)."""
    path = distances_of_x(slow(algorithm, lr=0.02, lr_dual=0.02, schedule="cube-root"), 300)
    constant = distances_of_x(slow(algorithm), SOON)
    assert constant[89] / constant[-1] < 1.02
    assert path[99] / path[-1] > 0.85 * 3**2
    assert path[-1] < constant[-1] / 10


@pytest.mark.parametrize("algorithm", [Fmgda, Fgda])
def test_the_floor_is_reached_again_after_memories_are_lost(algorithm: type[Fmgda | Fgda]) -> None:
    undisturbed = distances_of_x(slow(algorithm), SOON)
    path = distances_of_x(slow(algorithm), SOON, lost=frozenset({(70, 3), (70, 7)}))
    assert path[68] == undisturbed[68]
    assert path[69] > 2 * undisturbed[69], "the loss was felt"
    assert path[-1] == pytest.approx(undisturbed[-1], rel=0.01)


def adafgda(ratio: float, **keys: Any) -> FederatedStrategy:
    """γ / ρ is the step size of x where the gradients vanish."""
    return AdaFgda(local_steps=10, **({"lr": ratio, "lr_dual": 0.01, "rho": 1.0} | keys))


@pytest.mark.parametrize("matrix", ["adam", "belief"])
def test_as_gradients_vanish_adafgda_becomes_fgda_with_its_steps_over_rho(matrix: str) -> None:
    steps = {"lr": 0.001, "lr_dual": 0.001, "rho": 0.1, "matrix": matrix}
    path, goal = distances_of_x(adafgda(0.01, **steps), 340), distances_of_x(slow(Fgda), SOON)
    assert path[-1] == pytest.approx(goal[-1], rel=0.05)
    assert path[30] > 2 * goal[30], "until then the matrices have made the steps shorter"


def test_steps_over_rho_must_stay_below_the_stability_limit() -> None:
    """The limit of the saddle problem is 2 / τ = 0.2.

    What grows is in A soon and makes the steps shorter: above the limit the run does not grow for ever, but it never
    comes to rest.
    """
    below, above = (distances_of_x(adafgda(ratio), SOON) for ratio in (0.15, 0.25))
    assert max(above[100:]) > 30 * max(below[100:])
    assert max(below[100:]) == pytest.approx(min(below[100:]), rel=0.05), "at rest"
    assert max(above[100:]) > 2 * min(above[100:])


def test_a_run_beyond_the_limit_stops_and_says_what_to_change(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "algorithm": "adafgda",
        "problem": "saddle",
        "saddle.heterogeneity": SPREAD,
        "sites": SITES,
        "saddle.dimension": D,
        "rounds": 5,
        "workers": 1,
        "device": "cpu",
        "runs-dir": str(tmp_path),
        "adafgda.lr-dual": 1e-4,
    }
    advice = ("adafgda.lr = 0.1", "adafgda.lr-dual = 0.0001", "adafgda.rho = 0.01")
    with pytest.raises(DivergedError, check=has(*advice, round=1)):
        simulate(keys | {"adafgda.lr": 0.1})
    assert np.isfinite(simulate(keys | {"adafgda.lr": 0.001}).arrays["x"]).all()
