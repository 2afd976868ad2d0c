"""Paired differences with their intervals, and how far a key can be raised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.comparisons import stays
from benchmarks.pages import markdown
from benchmarks.sweep import Sweep
from benchmarks.tables import gather
from edelweiss.lab.compare.groups import half_width
from tests.benchmarks.pretended import lines, run


def test_half_the_width_of_an_interval_is_students() -> None:
    # Two-sided 95 % quantiles of t with 1 and 4 degrees of freedom, from a printed table.
    assert half_width([0.0, 2.0]) == pytest.approx(12.706 * 2**0.5 / 2**0.5, rel=1e-4)
    assert half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.776 * 2.5**0.5 / 5**0.5, rel=1e-3)


def test_differences_are_of_the_same_seed_and_have_an_order_only_beyond_their_interval(sweep: Sweep) -> None:
    study = replace(sweep.study, repeat={"seed": (0, 1, 2)}, compare={"local-steps": (2, 4)}, versus="fedavg")
    sweep = replace(sweep, study=study)
    # The seeds differ much more than the methods: only pairs show which is better with 2 local steps.
    fedavg = {(2, 0): 0.5, (2, 1): 0.7, (2, 2): 0.9, (4, 0): 0.5, (4, 1): 0.6, (4, 2): 0.7}
    codasca = {(2, 0): 0.511, (2, 1): 0.71, (2, 2): 0.909, (4, 0): 0.6, (4, 1): 0.5, (4, 2): 0.7}
    run(sweep, {"fedavg": fedavg, "codasca": codasca})
    assert lines(sweep, "| local-steps | method | difference |")[2:] == [
        "| 2 | codasca | +0.0100 | +0.0075 to +0.0125 | 3 | ahead |",
        "| 4 | codasca | +0.0000 | -0.2484 to +0.2484 | 3 | none shown |",
    ]
    turned = replace(sweep, study=replace(study, versus="codasca"))
    assert lines(turned, "| local-steps | method | difference |")[2].endswith("| 3 | behind |")


def test_several_metrics_have_rows_each_but_for_methods_that_lack_them(sweep: Sweep) -> None:
    report = {"central.auroc": "AUROC", "pooled.auroc": "held out", "sites.north.auroc": "north"}
    own = {"repeat": {"seed": (0, 1)}, "compare": {}, "versus": "fedavg", "report": report}
    sweep = replace(sweep, study=replace(sweep.study, **own, versus_in=("held out", "AUROC", "north")))
    run(sweep, {"fedavg": {(0,): 0.5, (1,): 0.6}, "codasca": {(0,): 0.6, (1,): 0.7}})
    found = lines(sweep, "| metric | method | difference |")[2:]
    assert [line[: line.index(" +")] for line in found] == ["| AUROC | codasca |", "| held out | codasca |"]
    assert "Differences in held out, AUROC, north to fedavg" in markdown(sweep, gather(sweep))


def test_seeds_that_one_of_the_two_lacks_are_no_pairs(sweep: Sweep) -> None:
    sweep = replace(sweep, study=replace(sweep.study, repeat={"seed": (0, 1, 2)}, compare={}, versus="fedavg"))
    run(sweep, {"fedavg": {(0,): 0.5, (1,): 0.6, (2,): 0.7}, "codasca": {(1,): 0.7}})
    assert lines(sweep, "| method | difference |")[2] == "| codasca | – | – | 1 | – |"


@pytest.mark.parametrize(
    ("means", "wanted"),
    [
        ([0.9, 0.895, 0.885], [True, True, False]),
        ([0.9, 0.8, 0.9], [True, False, False]),
        ([0.9, 0.95, 0.89], [True, True, True]),
        ([0.9, None, 0.9], [True, False, False]),
        ([None, 0.9], [False, False]),
    ],
)
def test_a_mean_stays_close_until_it_is_once_below(means: list[float | None], wanted: list[bool]) -> None:
    assert stays(means, 0.0100001) == wanted


def test_the_largest_value_of_a_key_is_found_for_each_choice_of_the_others(sweep: Sweep) -> None:
    study = replace(sweep.study, compare={"concentration": (1.0, 2.0), "local-steps": (2, 4, 8)}, within=0.05)
    sweep = replace(sweep, study=study)
    values = {"fedavg": (0.9, 0.8, 0.7), "codasca": (0.9, 0.86, 0.7)}
    run(
        sweep,
        {
            label: {
                (c, q, seed): value + (seed - 0.5) / 100 - (c - 1) / 10
                for c in (1.0, 2.0)
                for q, value in zip((2, 4, 8), line, strict=True)
                for seed in (0, 1)
            }
            for label, line in values.items()
        },
    )
    assert lines(sweep, "| concentration | method | local-steps 2 | 4 | 8 | up to |")[2:] == [
        "| 1 | fedavg | 0.9000 | 0.8000 | 0.7000 | 2 |",
        "| 1 | codasca | 0.9000 | 0.8600 | 0.7000 | 4 |",
        "| 2 | fedavg | 0.8000 | 0.7000 | 0.6000 | 2 |",
        "| 2 | codasca | 0.8000 | 0.7600 | 0.6000 | 4 |",
    ]
