"""Every experiment and every run of every study can be started; nothing is trained here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import REPO, STUDIES, Study
from benchmarks.sweep import Sweep
from edelweiss.config import RunConfig, flatten, read_overrides
from edelweiss.config.tables import own_options
from edelweiss.config.values import parse_classes
from edelweiss.lab.sweep.job import combinations
from edelweiss.problems import PROBLEMS
from edelweiss.strategies import ALGORITHMS
from edelweiss.strategies.local_steps import LocalSteps

EXPERIMENTS = sorted({*REPO.glob("experiments/**/*.toml")} - {*REPO.glob("experiments/**/study.toml")})


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.relative_to(REPO).as_posix())
def test_an_experiment_is_a_run_config(path: Path) -> None:
    RunConfig.parse(read_overrides([str(path)]))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.relative_to(REPO).as_posix())
def test_an_experiment_sets_the_step_sizes_of_its_algorithm_and_says_where_they_are_from(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    written = flatten(tomllib.loads(text))
    algorithm, problem = written["algorithm"], PROBLEMS[str(written["problem"])]
    steps = {key for key in own_options(ALGORITHMS[str(algorithm)]) if key.startswith("lr")}
    steps -= set() if problem.kind == "minimax" else {"lr-dual"}  # there is no y
    assert steps
    assert {f"{algorithm}.{key}" for key in steps} <= written.keys()
    comment = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert re.search(r"step sizes?\b", comment), "which study or run chose them"


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.relative_to(REPO).as_posix())
def test_other_settings_that_an_experiment_names_can_be_run(path: Path) -> None:
    """They stand in quotes in its comment: 'local-steps=128 rounds=157'."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    written = read_overrides([str(path)])
    for changes in re.findall(r"'([a-z][a-z.-]*=[^']*)'", comment):
        run = RunConfig.parse(written | read_overrides([changes]))
        assert run != RunConfig.parse(written), changes


def test_acc_fcsg_m_follows_gradients_of_networks_as_fast_as_the_studies_found_necessary() -> None:
    slow = []
    for path in EXPERIMENTS:
        written = flatten(tomllib.loads(path.read_text(encoding="utf-8")))
        if written["algorithm"] == "acc-fcsg-m" and "model" in written:
            slow += [path] * (float(written["acc-fcsg-m.beta"]) < 0.5)
    assert not slow, "with β = 0.1 it falls behind, or fails, at step sizes that suit the others"


@pytest.mark.parametrize(
    "path", [path for path in EXPERIMENTS if path.stem.endswith("-ih")], ids=lambda path: path.stem
)
def test_half_of_the_classes_are_positive_drawn_as_the_file_says(path: Path) -> None:
    (said,) = re.findall(
        r"^# numpy\.random\.default_rng\(0\)\.permutation\((\d+)\)\[:(\d+)\]", path.read_text(), re.MULTILINE
    )
    count, half = map(int, said)
    assert half == count // 2
    run = RunConfig.parse(read_overrides([str(path)]))
    drawn = np.random.default_rng(0).permutation(count)[:half]
    assert parse_classes(run.positive_classes) == tuple(sorted(drawn.tolist()))


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True], ids=["default", "full"])
@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_run_of_a_study_is_a_run_config(study: Study, full: bool) -> None:
    sweep = Sweep(study, Path(), full=full)
    sweep.check()


@pytest.mark.parametrize("full", [False, True], ids=["default", "full"])
@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_a_comparison_is_fair(study: Study, full: bool) -> None:
    sweep = Sweep(study, Path(), full=full)
    # Tuning costs every method the same.
    assert len({len(sweep.grid(method)) for method in study.methods}) == 1
    # No reported number is of the seed that chooses, and an ordering has three seeds behind it.
    seeds = study.repeat["seed"]
    assert study.tuning_seed not in seeds
    assert len(set(seeds)) >= 3
    # All methods of a study have the same SGD, or none has more than step sizes where some cannot.
    first = [next(iter(sweep.reported(method, sweep.grid(method)[0]))) for method in study.methods]
    built, plain = [RunConfig.parse(job.settings).strategy for job in first], (1.0, 0.0, 0.0)
    assert len({(s.decay, s.weight_decay, s.momentum) if isinstance(s, LocalSteps) else plain for s in built}) == 1
    for method in study.methods:
        for job in sweep.tuning(method):
            assert job.settings["seed"] == study.tuning_seed
            assert job.settings["central-test"] is False, "the test set has no part in the choice"
        point = sweep.grid(method)[0]
        for job in sweep.reported(method, point):
            assert job.settings["seed"] in seeds
        # What is compared, and only that, differs between its tables.
        wanted = [dict(cell) for cell in combinations(study.compare)]
        assert [dict(job.cell) for job in sweep.reported(method, point)][
            :: len(list(combinations(study.repeat)))
        ] == wanted


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_what_is_compared_reaches_the_runs(study: Study) -> None:
    sweep = Sweep(study, Path())
    for key, values in study.compare.items():
        depending = [
            method
            for method in study.methods
            if {job.settings.get(key) for job in sweep.reported(method, sweep.grid(method)[0])} == set(values)
        ]
        assert len(depending) >= len(study.methods) - 1, f"{key}: npa alone has one of its own"


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_labels_are_unique_and_refer_to_each_other(study: Study) -> None:
    labels = [method.label for method in study.methods]
    assert len(set(labels)) == len(labels)
    assert set(study.paper) <= set(labels)
    assert study.reference in ("", *labels)
    assert set(study.curves) <= set(study.report.values())
    assert {heading for numbers in study.paper.values() for heading in numbers} <= set(study.report.values())


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_what_is_reduced_is_said(study: Study) -> None:
    changed = {key for key in study.reduced if key != "evaluate-every"}
    assert not changed or study.size.startswith("Reduced: ")
