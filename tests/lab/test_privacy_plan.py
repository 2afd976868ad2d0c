"""``edelweiss privacy plan``: what it says of a run is what the run does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edelweiss.common import ConfigError, Value
from edelweiss.config import RunConfig
from edelweiss.config.privacy import price
from edelweiss.federation import privacy_plan
from edelweiss.federation.oracle import not_private
from edelweiss.federation.privacy_plan import total
from edelweiss.lab.commands.privacy import HEADINGS, plan
from edelweiss.problems import PROBLEMS
from edelweiss.server_app import simulate
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.fitting import fitting

RUN: dict[str, Value] = {"algorithm": "fmgda", "rounds": 3, "local-steps": 2, "sites": 3, "batch-size": 8}


def rows(given: dict[str, Value], patients: list[int], noises: tuple[float, ...] = ()) -> list[dict[str, float]]:
    lines = [line.split() for line in plan(given, patients, noises)]
    return [
        dict(zip(HEADINGS, map(float, line), strict=True))
        for line in lines
        if len(line) == len(HEADINGS) and line[0].isdigit()
    ]


def test_a_run_adds_the_noise_that_the_plan_says(tmp_path: Path) -> None:
    given = RUN | {"dp.epsilon": 3.0}
    simulate(given | {"runs-dir": str(tmp_path), "run-name": "r", "engine": "local", "report": False})
    sites = json.loads((tmp_path / "r" / "about.json").read_text())["privacy"]["sites"].values()
    found = {row["patients"]: row for row in rows(given, [site["patients"] for site in sites])}
    assert len(sites) == RUN["sites"]
    for site in sites:
        row = found[site["patients"]]
        assert row["noise"] == pytest.approx(site["noise"], abs=1e-3)
        assert row["epsilon"] == pytest.approx(site["epsilon"], abs=1e-3)
        assert row["tight"] == pytest.approx(site["tight-epsilon"], abs=1e-3)


@pytest.mark.slow
def test_noise_for_an_epsilon_costs_that_epsilon_and_a_larger_site_needs_less() -> None:
    planned = rows(RUN, [200, 2000])
    assert [(row["patients"], round(row["epsilon"])) for row in planned] == [
        (patients, epsilon) for patients in (200, 2000) for epsilon in (8, 3, 1)
    ]
    for row in planned:
        (back,) = rows(RUN, [int(row["patients"])], (row["noise"],))
        assert back["epsilon"] == pytest.approx(row["epsilon"], rel=0.01)
        assert back["tight"] < back["epsilon"]
    small, large = planned[:3], planned[3:]
    assert all(one["noise"] > other["noise"] for one, other in zip(small, large, strict=True))


@pytest.mark.parametrize(
    ("given", "patients", "noises", "named"),
    [
        (RUN, [0, -3], (-1.0,), ["--patients 0", "--patients -3", "--noise -1"]),
        (RUN | {"sampler": "fixed-positives"}, [200], (), ["fixed-positives"]),
        (RUN | {"dp.epsilon": "x"}, [200], (), ["dp.epsilon"]),
        (RUN | {"dp.epsilon": 0.01}, [200], (), ["dp.epsilon = 0.01"]),
        (RUN | {"rounds": 200}, [200], (), ["rounds or local-steps"]),
    ],
)
def test_what_cannot_be_planned_is_named(
    given: dict[str, Value],
    patients: list[int],
    noises: tuple[float, ...],
    named: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(privacy_plan, "MOST_GRADIENTS", 300)
    with pytest.raises(ConfigError) as caught:
        list(plan(given, patients, noises))
    assert len(caught.value.problems) == len(named)
    assert all(name in said for name, said in zip(named, caught.value.problems, strict=True))


@pytest.mark.parametrize("algorithm", [name for name, kind in ALGORITHMS.items() if not not_private(kind.needs)])
def test_every_algorithm_that_may_be_private_has_a_plan(algorithm: str) -> None:
    problem = next(
        name for name, kind in PROBLEMS.items() if kind.needs_data and can_solve(ALGORITHMS[algorithm], kind)
    )
    keys: dict[str, Value] = {"algorithm": algorithm, "problem": problem, "rounds": 3, "sites": 3, "dp.epsilon": 3.0}
    try:
        run = RunConfig.parse(keys | fitting(algorithm))
    except ConfigError:
        pytest.skip("it is refused for another reason")
    assert total(price(run, 3, 200).plan), "it takes gradients of patients"
