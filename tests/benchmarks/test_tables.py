"""The table of a study: means, costs, what a method reached within the budget of another, and what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pages import markdown
from benchmarks.studies import Method
from benchmarks.sweep import Sweep
from benchmarks.tables import Row, gather
from edelweiss.lab.compare.folders import read
from tests.benchmarks.pretended import every_run, leave, pretend
from tests.lab.compared import COST
from tests.lab.compared import leave as leave_run


def test_columns_at_equal_cost(sweep: Sweep) -> None:
    fedavg, codasca = sweep.study.methods
    for each in (fedavg, codasca):
        for job in sweep.tuning(each):
            pretend(sweep, job, held_out=0.6)
        for job in sweep.reported(each, sweep.grid(each)[0]):
            moved = 1e6 if each is fedavg else 2e6
            lines = [
                {
                    "round": r,
                    "seconds": 3.0,
                    "bytes-down": moved,
                    "bytes-up": 0,
                    "gradients": 4,
                    "samples": 64,
                    "central": {"auroc": r / 10},
                }
                for r in (1, 2, 3, 4)
            ]
            leave(sweep, job, lines)
    row = next(iter(gather(sweep).values()))[1]
    # Two sites: 2 MB per site for FedAvg in all, and CODASCA spends 1 MB a round.
    assert row.spent("megabytes") == pytest.approx(4.0)
    assert row.within("central.auroc", "megabytes", 2.0) == pytest.approx(0.2)
    assert row.within("central.auroc", "samples", 128.0) == pytest.approx(0.4)
    assert row.within("central.auroc", "megabytes", 0.5) is None
    line = next(line for line in markdown(sweep, gather(sweep)).splitlines() if line.startswith("| codasca"))
    assert line == "| codasca | 0.1 | 0.4000 ± 0.0000 | 8 | 128 | 4 | 0.4000 | 0.2000 |"
    # Three rounds of 3 s by two sites.
    for target, cells in ((0.25, ["3", "4.5"]), (0.5, ["not in 2 of 2 runs"] * 2)):
        aimed = replace(sweep, study=replace(sweep.study, target=target))
        lines = markdown(aimed, gather(aimed)).splitlines()
        assert any(f" | rounds to AUROC {target} | seconds per worker | " in line for line in lines)
        assert next(line for line in lines if line.startswith("| codasca | 0.1 |")).split(" | ")[3:5] == cells


def test_missing_and_diverged_runs_are_named(sweep: Sweep) -> None:
    fedavg, codasca = sweep.study.methods
    for job in (*sweep.tuning(fedavg), *sweep.tuning(codasca)):
        pretend(sweep, job, held_out=0.6, diverged="the run diverges" if job.method is codasca else "")
    first, second = [job for job in sweep.reported(fedavg, sweep.grid(fedavg)[0]) if job.cell["local-steps"] == 2]
    pretend(sweep, first, held_out=0.6, test=0.75)
    text = markdown(sweep, gather(sweep))
    assert "| fedavg (1 of 2 runs missing) | 0.1 | 0.7500 |" in text
    assert "| codasca | every point of the grid diverged | diverged |" in text
    assert "| fedavg |  | not run |" in text  # with the other number of local steps
    pretend(sweep, second, held_out=0.6, diverged="the run diverges")
    assert "| fedavg (1 of 2 runs diverged) | 0.1 | 0.7500 |" in markdown(sweep, gather(sweep))


def test_several_keys_make_one_table_with_a_row_per_value_and_method(sweep: Sweep) -> None:
    keys = {"local-steps": (2, 4), "concentration": (0.5, 1.0, 2.0)}
    sweep = replace(sweep, study=replace(sweep.study, compare=keys))
    fedavg, codasca = sweep.study.methods
    for each in (fedavg, codasca):
        for job in sweep.tuning(each):
            pretend(sweep, job, held_out=0.6)
        for job in sweep.reported(each, sweep.grid(each)[0]):
            # The reference has no run in one cell.
            if each is codasca or job.cell != {"local-steps": 4, "concentration": 2.0}:
                test = job.cell["local-steps"] / 10 + job.cell["concentration"] / 100 + (each is codasca) / 5  # type: ignore[operator]
                pretend(sweep, job, held_out=0.6, test=test)
    lines = [line for line in markdown(sweep, gather(sweep)).splitlines() if line.startswith("|")]
    assert lines[0].startswith("| local-steps | concentration | method | step sizes | AUROC |")
    assert len(lines) == 2 + 2 * 3 * 2
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| 2 | 0.5 | fedavg | 0.1 | 0.2050 ± 0.0000 |")
    assert lines[3].startswith("| 2 | 0.5 | codasca | 0.1 | 0.4050 ± 0.0000 |")
    assert lines[3].endswith("| 0.4050 | 0.4050 |")
    assert lines[-2].startswith("| 4 | 2 | fedavg |  | not run |")
    assert lines[-1].startswith("| 4 | 2 | codasca | 0.1 | 0.6200 ± 0.0000 |")
    assert lines[-1].endswith("| – | – |"), "nothing to compare with"


def test_published_numbers_stand_beside_ours_by_the_first_key_where_they_depend_on_it(sweep: Sweep) -> None:
    paper = {"fedavg": {"AUROC": 0.8}, "codasca": {"AUROC": {2: 0.9, 4: 0.7}}}
    sweep = replace(sweep, study=replace(sweep.study, paper=paper, reference=""))
    for job in every_run(sweep):
        pretend(sweep, job, held_out=0.6)
    lines = [line for line in markdown(sweep, gather(sweep)).splitlines() if line.startswith("|")]
    assert lines[0].startswith("| method | step sizes | AUROC | AUROC, paper |")
    theirs = [line.split(" | ")[3] for line in lines if line.startswith(("| fedavg", "| codasca"))]
    assert theirs == ["0.8000", "0.9000", "0.8000", "0.7000"]


FEDAVG = {"algorithm": "fedavg", "problem": "bce"}


def row(runs: Path) -> Row:
    found, _ = read([str(runs / "*")])
    return Row(label="", method=Method(label="", algorithm="fedavg"), chosen=None, runs=[each.run for each in found])


def test_a_target_is_reached_in_the_round_that_meets_it(tmp_path: Path) -> None:
    """By those runs that came so far: of seeds 0, 1 and 2 the last two meet 0.7 in round 2, and nobody does before."""
    for seed, value in enumerate((0.5, 0.7, 0.9)):
        leave_run(tmp_path / "runs" / str(seed), [value / 2, value], seed=seed, **FEDAVG)
    fedavg = row(tmp_path / "runs")
    assert fedavg.reached("central.auroc", 0.7) == [(2.0, 0.5)] * 2
    assert fedavg.reached("central.auroc", 0.25) == [(1.0, 0.25)] * 3


def test_a_mean_within_a_budget_is_over_all_runs_or_there_is_none(tmp_path: Path) -> None:
    """One run takes all of the budget for its first round: a mean of the others would be one of the cheap seeds."""
    leave_run(tmp_path / "runs" / "cheap", [0.5, 0.7, 0.9], seed=0, **FEDAVG)
    dear = leave_run(tmp_path / "runs" / "dear", [0.4, 0.6, 0.8], seed=1, **FEDAVG) / "metrics.jsonl"
    lines = [json.loads(line) for line in dear.read_text().splitlines()]
    dear.write_text("".join(json.dumps(line | {"seconds": 2 * COST["seconds"]}) + "\n" for line in lines))
    fedavg = row(tmp_path / "runs")
    each = [curve[0][1] for run in fedavg.runs for curve in [run.spending("seconds")]]
    assert fedavg.within("central.auroc", "seconds", max(each)) == pytest.approx((0.7 + 0.4) / 2)
    assert fedavg.within("central.auroc", "seconds", min(each)) is None
