"""What a run takes of memory: said before it is tried, and never of a run that would do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from edelweiss.config import RunConfig, read_overrides
from edelweiss.datasets import DataSummary
from edelweiss.federation import RunError
from edelweiss.models import ModelError, build
from edelweiss.models.networks import parameters
from edelweiss.problems import PROBLEMS, ProblemError
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.memory_estimate import memory_of, remembered, require_memory, stack_of
from tests.said import has
from tests.server_app.sites import saddle_job

REPO = Path(__file__).resolve().parents[2]
MACHINE = 24e9  # bytes, of the least on which each experiment is to run
SHAPES = {"mnist": (1, 28, 28), "mnist-pairs": (1, 14, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
SHAPES |= {"cifar100": (3, 32, 32), "omniglot": (1, 28, 28), "heart-disease": (13,), "harbox": (900,)}


@pytest.mark.parametrize("file", sorted(REPO.glob("experiments/*/*.toml")), ids=lambda file: file.stem)
def test_no_experiment_is_refused(file: Path) -> None:
    if file.stem == "study":
        pytest.skip("no run-config")
    config = RunConfig.parse(read_overrides([str(file)]))
    if not PROBLEMS[config.problem].needs_data:
        d = max(config.options.get("dimension", 20), 1)
    else:
        shape = SHAPES.get(config.dataset, (3, config.image_size or 64, config.image_size or 64))
        d = parameters(config.model, shape, 100, config.hidden)
    assert memory_of(int(d), 16, 1, 0) < MACHINE  # what the sites remember may lie on a disk


def test_what_is_asked_for_grows_with_all_that_counts() -> None:
    need = memory_of(1000, 2, 1, 4000)
    assert need >= 4 * 1000 * 2 + 4000  # each worker's network, what the sites remember
    assert memory_of(2000, 2, 1, 8000) == 2 * need
    assert memory_of(1000, 3, 1, 4000) > need > memory_of(1000, 2, 1, 0)
    assert memory_of(1000, 2, 9, 4000) > need


def test_more_than_there_is_is_one_line_with_both_numbers() -> None:
    need = memory_of(10**13, 2, 1, 0)
    with pytest.raises(RunError, check=has(f"{need / 1e9:,.1f} GB", key="workers", value=need)) as refused:
        require_memory(RunConfig.parse({}), 10**13, 2, 1, 0)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_the_clients_of_a_round_make_a_stack_for_each_core_whatever_the_workers(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edelweiss.server_app.memory_estimate.cores", lambda: cores)
    job = {"model": "linear", "sites": 1000, "fraction": 0.2, "stack": 0}
    for config in (RunConfig.parse(job | {"workers": workers}) for workers in (1, 2, 16)):
        problem = config.build_problem(config.setting(DataSummary(shape=(20,)), "cpu"))
        assert stack_of(config, problem, 21, Progress(quiet=True)) == math.ceil(200 / max(2, cores))


def test_a_stack_that_is_left_to_the_machine_is_as_large_as_its_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edelweiss.common.memory.free_memory", lambda: 10**9)
    monkeypatch.setattr("edelweiss.server_app.memory_estimate.free_memory", lambda: 10**9)
    fits = require_memory(RunConfig.parse({"stack": 0}), 10**6, 2, 64, 0)
    assert memory_of(10**6, 2, fits, 0) <= 10**9 < memory_of(10**6, 2, fits + 1, 0)
    assert require_memory(RunConfig.parse({"stack": fits}), 10**6, 2, fits, 0) == fits
    with pytest.raises(RunError, check=has(f"stack = {fits}", key="stack", value=64, allowed=fits)):
        require_memory(RunConfig.parse({"stack": 64}), 10**6, 2, 64, 0)


def test_states_are_counted_of_sites_that_can_have_any() -> None:
    """One of a thousand takes part in a round: after two rounds two have something to remember."""

    def counted(**keys: Any) -> int:
        config = RunConfig.parse({"algorithm": "codasca", "model": "linear", "sites": 1000, "fraction": 1e-3} | keys)
        problem = config.build_problem(config.setting(DataSummary(shape=(20,)), "cpu"))
        return remembered(config, problem, problem.initial())

    each = counted(rounds=1, **{"checkpoint-every": 0})
    assert counted(rounds=2, **{"checkpoint-every": 0}) == 2 * each
    assert counted(rounds=2) == 3 * each, "the site of this round has what it remembered before, too"
    assert counted(rounds=5000, **{"checkpoint-every": 0}) == 1000 * each


def test_a_network_is_counted_before_it_is_built() -> None:
    for name in ("mlp", "conv4", "lenet5"):
        built = build(name, (1, 28, 28), 3, hidden=8)
        assert parameters(name, (1, 28, 28), 3, 8) == sum(math.prod(p.shape) for p in built.parameters())
    with pytest.raises(ModelError, check=has("hidden = 1000000", " 8,")):
        build("mlp", (30,), hidden=10**6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"saddle.dimension": 10**9}, "saddle.dimension = 1000000000"),
        ({"problem": "invariant-logistic", "algorithm": "fcsg", "invariant-logistic.dimension": 10**9}, "dimension"),
    ],
)
def test_a_problem_in_closed_form_says_it_too(tmp_path: Path, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ProblemError, check=has(named, "GB")):
        simulate({**saddle_job(tmp_path), "sites": 1000, **keys})


@pytest.mark.parametrize("growth", [2.0, 1e6])
def test_a_stage_whose_rounds_would_not_end_is_refused_with_its_round(growth: float) -> None:
    from edelweiss.config import ConfigError

    allowed = {"stage-steps-growth": growth, "stage-iterations": 10**8, "rounds": 100}
    assert RunConfig.parse(allowed)
    with pytest.raises(ConfigError, check=has(keys=["stage-steps-growth"])):
        RunConfig.parse(allowed | {"stage-iterations": 1})
