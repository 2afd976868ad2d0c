"""The runs of a study: their names, what is read of them, and a choice without the test set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sweep import Sweep
from edelweiss.config import ConfigError
from edelweiss.lab.compare.runs import OUTCOME
from edelweiss.lab.sweep.job import parsed
from tests.benchmarks.conftest import TOML
from tests.benchmarks.pretended import COST, every_run, pretend
from tests.said import has


def test_the_table_of_another_algorithm_is_no_part_of_a_run(sweep: Sweep) -> None:
    for job in every_run(sweep):
        assert {key for key in job.settings if "." in key} == {f"{job.method.algorithm}.lr"}


def test_runs_have_names_of_their_own_that_do_not_change(sweep: Sweep) -> None:
    names = [job.name for job in every_run(sweep)]
    assert len(set(names)) == len(names) == 2 * 2 + 2 * 4
    assert names == [job.name for job in every_run(sweep)]
    # A path or the number of processes makes no other run.
    elsewhere = replace(sweep, changes={"data-root": "/elsewhere", "workers": 2})
    assert names == [job.name for job in every_run(elsewhere)]
    assert not set(names) & {job.name for job in every_run(replace(sweep, changes={"hidden": 5}))}


def test_the_choice_is_the_best_on_the_held_out_samples(sweep: Sweep) -> None:
    fedavg = sweep.study.methods[0]
    first, second = sweep.tuning(fedavg)
    assert sweep.choose(fedavg) is None
    pretend(sweep, first, held_out=0.6, test=0.9)
    assert sweep.choose(fedavg) is None
    pretend(sweep, second, held_out=0.7, test=0.1)
    assert sweep.choose(fedavg) == {"fedavg.lr": 0.01}


@pytest.mark.parametrize("failure", [{"diverged": "the run diverges"}, {"held_out": None}])
def test_a_run_that_diverged_or_has_no_value_is_not_chosen(sweep: Sweep, failure: dict[str, Any]) -> None:
    fedavg = sweep.study.methods[0]
    first, second = sweep.tuning(fedavg)
    pretend(sweep, first, **{"held_out": 0.99} | failure)
    pretend(sweep, second, held_out=0.6)
    assert sweep.choose(fedavg) == {"fedavg.lr": 0.01}


def test_equal_points_go_to_the_first(sweep: Sweep) -> None:
    fedavg = sweep.study.methods[0]
    for job in sweep.tuning(fedavg):
        pretend(sweep, job, held_out=0.6)
    assert sweep.choose(fedavg) == {"fedavg.lr": 0.1}


def test_a_default_that_changed_makes_it_another_run(sweep: Sweep) -> None:
    job = every_run(sweep)[0]
    pretend(sweep, job, held_out=0.6)
    config = sweep.folder / job.name / "config.toml"
    text = config.read_text()
    assert sweep.outcome(job) is not None
    config.write_text("a-key-of-another-version = 1\n" + text)
    assert sweep.outcome(job) is not None
    config.write_text(text.replace("batch-size = 16", "batch-size = 17"))
    assert sweep.outcome(job) is None


DAMAGED: dict[str, tuple[str, str]] = {
    "half a line": ("metrics.jsonl", '{"round": 1, "cen'),
    "a list": ("metrics.jsonl", "[1]\n"),
    "a text for a number": ("metrics.jsonl", json.dumps({"round": 1, **COST, "central": {"auroc": "x"}})),
    "a line without costs": ("metrics.jsonl", '{"round": 1}'),
    "the line of another round": ("metrics.jsonl", json.dumps({"round": 2, **COST})),
    "nothing": (OUTCOME, ""),
    "another version": (OUTCOME, '{"diverged": "", "seconds": 1.0, "version": "1", "new": 3}'),
    "no time": (OUTCOME, '{"diverged": "", "seconds": NaN, "version": "1"}'),
    "no end": (OUTCOME, "[" * 10**5),
    "no keys": ("config.toml", ""),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_kept_and_damaged_stops_the_study_with_a_line(sweep: Sweep, damage: str) -> None:
    job = every_run(sweep)[0]
    assert sweep.outcome(job) is None
    pretend(sweep, job, held_out=0.6)
    assert sweep.outcome(job)
    name, content = DAMAGED[damage]
    (sweep.folder / job.name / name).write_text(content)
    with pytest.raises(ConfigError, check=has(job.name)) as told:
        sweep.outcome(job)
    assert len(told.value.problems) == 1


def test_a_file_in_the_place_of_a_kept_run_is_damage(sweep: Sweep) -> None:
    job = every_run(sweep)[0]
    sweep.folder.mkdir()
    (sweep.folder / job.name).touch()
    with pytest.raises(ConfigError, check=has(job.name)):
        sweep.outcome(job)


def test_workers_that_each_have_a_part_of_the_test_set_do_not_choose_by_it(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text("personal-test = true\n" + TOML, encoding="utf-8")
    for each in sweep.study.methods:
        assert not any(parsed(job.settings).personal_test for job in sweep.tuning(each))
        assert all(parsed(job.settings).personal_test for job in sweep.reported(each, {}))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"local-steps": 8}, "local-steps: the study compares 2, 4; leave it out"),
        ({"seed": 3}, "seed: the study repeats every run with 0, 1; leave it out"),
        ({"codasca.lr": 1.0}, "codasca.lr: the study sets it for codasca; leave it out"),
        ({"problem": "auc"}, "problem: the study sets it for fedavg; leave it out"),
        ({"algorithm": "coda"}, "algorithm: each method has its own; leave it out"),
        ({"workers": 2}, "workers: it does not change what is computed; leave it out"),
    ],
)
def test_what_the_table_names_cannot_be_changed_by_hand(sweep: Sweep, changes: dict[str, Any], why: str) -> None:
    sweep.check()
    with pytest.raises(ConfigError) as refused:
        replace(sweep, changes={"hidden": 5, **changes}).check()
    assert refused.value.problems == [why]
