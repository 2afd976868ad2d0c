"""Random search, grids that grow, a choice for each value of a key, and equal iterations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.pages import preamble
from benchmarks.studies import STUDIES, Between, Method, Study, drawn, method
from benchmarks.sweep import Sweep
from edelweiss.lab.compare.grids import beyond
from tests.benchmarks.pretended import every_run, pretend

RANGES = {
    "codasca.lr": Between(0.01, 1.0),
    "batch-size": (8, 16),
    "auc.score auc-margin.score": ("sigmoid", "identity"),
}
SEARCHES = [study for study in STUDIES.values() if study.trials]


def searched(label: str = "codasca") -> Method:
    return Method(label=label, algorithm="codasca", ranges=RANGES)


# ---------------------------------------------------------------------- random search


def test_a_search_draws_the_same_trials_again_and_others_for_another_method() -> None:
    points = drawn(searched(), 8)
    assert points == drawn(searched(), 8)
    assert points[:3] == drawn(searched(), 3), "more trials only add some"
    assert points != drawn(searched("another"), 8)
    assert len({tuple(point.items()) for point in points}) == 8


def test_trials_lie_in_their_ranges_and_spread_over_them() -> None:
    points = drawn(searched(), 200)
    rates = [float(point["codasca.lr"]) for point in points]
    assert 0.01 <= min(rates) < 0.02
    assert 0.5 < max(rates) <= 1.0
    assert 70 < sum(rate < 0.1 for rate in rates) < 130, "uniform in the logarithm"
    assert {point["batch-size"] for point in points} == {8, 16}
    assert all(point["auc.score"] == point["auc-margin.score"] for point in points), "one draw for both"


def test_a_search_chooses_among_its_trials(sweep: Sweep) -> None:
    study = replace(sweep.study, methods=(searched(),), trials=4, reference="")
    sweep = replace(sweep, study=study)
    jobs = sweep.tuning(study.methods[0])
    assert [job.point for job in jobs] == list(drawn(study.methods[0], 4))
    for place, job in enumerate(jobs):
        pretend(sweep, job, held_out=0.9 if place == 2 else 0.6)
    assert sweep.choose(study.methods[0]) == jobs[2].point
    assert sweep.choose(study.methods[0]) != jobs[0].point
    text = "\n".join(preamble(sweep))
    assert "4 points drawn from its own ranges" in text
    assert "lr from 0.01 to 1" in text


@pytest.mark.parametrize("study", SEARCHES, ids=lambda study: study.name)
def test_every_method_of_a_published_search_has_as_many_different_trials(study: Study) -> None:
    assert len(study.repeat["seed"]) >= 5
    for each in study.methods:
        points = drawn(each, study.trials)
        assert len({str(point) for point in points}) == study.trials
        assert any(key.startswith(f"{each.algorithm}.lr") for key in each.ranges)


# ---------------------------------------------------------------------- grids that grow


GRID = ({"a.lr": 0.1, "a.lr-dual": 0.1}, {"a.lr": 0.3, "a.lr-dual": 0.3}, {"a.lr": 1.0, "a.lr-dual": 1.0})


@pytest.mark.parametrize(("best", "wanted"), [(0, 0.03), (1, None), (2, 3.0)])
def test_the_point_beyond_an_edge_is_three_times_as_far(best: int, wanted: float | None) -> None:
    assert beyond(GRID, GRID[best]) == (wanted and {"a.lr": wanted, "a.lr-dual": wanted})
    assert beyond(GRID[::-1], GRID[best]) == (wanted and {"a.lr": wanted, "a.lr-dual": wanted})


def test_only_step_sizes_grow_and_only_beside_points_that_differ_in_nothing_else() -> None:
    points = [{"a.lr": lr, "a.beta": beta} for beta in (0.1, 0.5) for lr in (0.1, 1.0)] + [{"a.lr": 9.0, "a.beta": 0.9}]
    assert beyond(points, points[1]) == {"a.lr": 3.0, "a.beta": 0.1}
    assert beyond(points, points[4]) is None, "a line of one point has no edge"
    assert beyond([{"x": 1}, {"x": 2}], {"x": 2}) is None


def test_the_neighbours_of_a_step_size_agree_in_a_step_size_that_varies_by_itself() -> None:
    points = [{"a.lr": lr, "a.lr-dual": dual} for lr, dual in ((0.01, 0.1), (0.1, 0.1), (1.0, 1.0))]
    assert beyond(points, points[1]) == {"a.lr": 0.3, "a.lr-dual": 0.1}


def test_a_grid_grows_until_the_best_lies_inside_or_it_may_not(sweep: Sweep) -> None:
    fedavg = method("fedavg", 0.1, 0.3, settings={"problem": "bce"})
    sweep = replace(sweep, study=replace(sweep.study, methods=(fedavg,), extend=2))

    def add(values: list[float]) -> list[float]:
        """Do the runs that are asked for, with these values; return their step sizes."""
        for value in values:
            todo = [job for job in sweep.tuning(fedavg) if sweep.outcome(job) is None]
            pretend(sweep, todo[0], held_out=value)
        return [float(job.point["fedavg.lr"]) for job in sweep.tuning(fedavg)]

    assert add([]) == [0.1, 0.3], "before its runs are there, nothing is said of its edges"
    assert add([0.6]) == [0.1, 0.3]
    assert add([0.7]) == [0.1, 0.3, 0.9]
    assert sweep.choose(fedavg) is None, "a run is missing"
    assert add([0.8]) == [0.1, 0.3, 0.9, 3.0]
    assert add([0.9]) == [0.1, 0.3, 0.9, 3.0], "twice at most"
    assert sweep.choose(fedavg) == {"fedavg.lr": 3.0}
    assert sweep.on_edge(fedavg, {"fedavg.lr": 3.0}, {})
    assert not sweep.on_edge(fedavg, {"fedavg.lr": 0.9}, {})
    assert "grew there by a factor of 3, up to 2 times" in "\n".join(preamble(sweep))


def test_a_grid_that_diverges_throughout_grows_downwards(sweep: Sweep) -> None:
    codasca = method("codasca", 0.1, 0.3)
    sweep = replace(sweep, study=replace(sweep.study, methods=(codasca,), extend=1))
    for job in sweep.tuning(codasca):
        pretend(sweep, job, held_out=0.6, diverged="the run diverges")
    (added,) = [job for job in sweep.tuning(codasca) if sweep.outcome(job) is None]
    assert added.point == {"codasca.lr": 0.03}
    pretend(sweep, added, held_out=0.6)
    assert sweep.choose(codasca) == {"codasca.lr": 0.03}


# ---------------------------------------------------------------------- keys that are compared


def test_each_value_of_a_key_has_a_choice_of_its_own(sweep: Sweep) -> None:
    sweep = replace(sweep, study=replace(sweep.study, tune_by=("local-steps",)))
    fedavg = sweep.study.methods[0]
    jobs = sweep.tuning(fedavg)
    assert [(job.settings["local-steps"], job.point["fedavg.lr"]) for job in jobs] == [
        (2, 0.1),
        (2, 0.01),
        (4, 0.1),
        (4, 0.01),
    ]
    for job, value in zip(jobs, (0.8, 0.6, 0.6, 0.8), strict=True):
        pretend(sweep, job, held_out=value)
    assert sweep.choose(fedavg, {"local-steps": 2}) == {"fedavg.lr": 0.1}
    assert sweep.choose(fedavg, {"local-steps": 4}) == {"fedavg.lr": 0.01}
    chosen = [job for job in sweep.chosen() if job.method is fedavg]
    assert {(job.settings["local-steps"], job.settings["fedavg.lr"]) for job in chosen} == {(2, 0.1), (4, 0.01)}


def test_iterations_are_equal_whatever_the_local_steps(sweep: Sweep) -> None:
    study = replace(sweep.study, equal_iterations=True, compare={"local-steps": (1, 2, 4, 3)})
    changed = replace(sweep, study=study, changes={"rounds": 6})
    for each, iterations in ((replace(sweep, study=study), 8), (changed, 12)):
        for job in every_run(each):
            rounds, q = job.settings["rounds"], job.settings["local-steps"]
            assert rounds == round(iterations / q)  # type: ignore[operator]
