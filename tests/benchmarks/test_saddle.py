"""What the study "saddle" shows, as assertions: who reaches the saddle point, who stalls before it, and where.

The methods are the study's own, played in float64 without an engine; seed 0, s = 10 unless said otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.studies import STUDIES
from benchmarks.sweep import Sweep
from edelweiss.config import RunConfig
from edelweiss.federation import FederatedStrategy
from edelweiss.problems.saddle import saddle_coefficients
from tests.problems.example import given_saddle
from tests.strategies.halves import SideBySide, drive

pytestmark = pytest.mark.slow  # thousands of steps each

K, D, ROUNDS = 10, 20, 200
REACHED = 1e-12
METHODS = {method.label: method for method in STUDIES["saddle"].methods}
EXACT = ("codasca", "sagda", "cdma", "fednest")
DRIFTING = ("local-sgda", "local-sgda-plus", "momentum-local-sgda", "momentum-local-sgda-plus")


def strategy(label: str) -> FederatedStrategy:
    method = METHODS[label]
    sweep = Sweep(STUDIES["saddle"], Path())
    (first, *_) = sweep.reported(method, sweep.grid(method)[0])
    return RunConfig.parse(first.settings).strategy


@cache
def path(label: str, spread: float = 10.0, rounds: int = ROUNDS, **fields: float) -> list[tuple[float, float]]:
    """Return ‖x-x*‖² and ‖y-y*‖² after each round."""
    slopes, offsets = saddle_coefficients(K, D, spread, 0)
    problem = given_saddle(slopes, offsets)
    played = replace(strategy(label), **fields)  # type: ignore[arg-type]
    states = drive(played, problem.initial(), SideBySide(slopes, offsets), rounds, K)
    measured = [problem.metrics(state["x"], state["y"], None) for state in states]
    return [(float(str(m["distance-x"])), float(str(m["distance-y"]))) for m in measured]


def test_the_study_has_the_setting_of_the_paper() -> None:
    sweep = Sweep(STUDIES["saddle"], Path())
    for label, method in METHODS.items():
        for job in sweep.reported(method, sweep.grid(method)[0]):
            config = RunConfig.parse(job.settings)
            steps = 1 if label == "npa" else 10
            assert (config.sites, config.options["dimension"], config.rounds) == (K, D, ROUNDS)
            assert config.strategy.local_steps == steps
            assert config.options["heterogeneity"] in (1.0, 10.0)


@pytest.mark.parametrize("label", EXACT)
def test_these_reach_the_saddle_point(label: str) -> None:
    reached = path(label)
    assert reached[0][1] > 1, "the start is far away"
    assert max(reached[-1]) < REACHED


@pytest.mark.parametrize("label", DRIFTING)
def test_these_stall_at_a_floor_that_grows_with_the_square_of_s(label: str) -> None:
    floor = path(label)[-1]
    assert 1e-7 < floor[0] < 5e-5  # 6.6e-6; with momentum a tenth of that at β = 0.1
    assert path(label)[ROUNDS // 2][0] == pytest.approx(floor[0], rel=0.05), "it has stopped falling"
    assert floor[1] > REACHED
    assert floor[0] / path(label, 1.0)[-1][0] == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize("label", ["fmgda", "fgda"])
def test_recursive_momentum_stalls_about_ten_times_lower_and_the_less_the_smaller_its_weights_are(label: str) -> None:
    floor = path(label)[-1][0]
    assert path(label)[ROUNDS // 2][0] == pytest.approx(floor, rel=0.05)
    assert 5 < path("local-sgda")[-1][0] / floor < 15
    assert floor > 4 * path(label, fresh_weight=0.03, fresh_weight_dual=0.03)[-1][0]


@pytest.mark.parametrize("label", ["fmgda", "fgda"])
def test_under_the_cube_root_schedule_it_keeps_falling(label: str) -> None:
    falling = path(f"{label}, cube-root")
    assert falling[ROUNDS // 2][0] > 1.3 * falling[-1][0]
    assert falling[-1][0] < 0.2 * path(label)[-1][0]


def test_adafgda_comes_to_rest_as_its_step_stays_below_the_stability_limit() -> None:
    # lr / ρ = 0.1 as the gradients vanish, below 2 / τ = 0.2.
    assert path("adafgda")[-1][0] < 1e-2
    assert path("adafgda")[3 * ROUNDS // 4][0] == pytest.approx(path("adafgda")[-1][0], rel=0.05)
