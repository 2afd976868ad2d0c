"""Whole runs whose clients train side by side."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from edelweiss.client_app import vectorised as together
from edelweiss.common import Value
from edelweiss.config import RunConfig
from edelweiss.federation import RunError
from edelweiss.models.storage import StoredTensors
from edelweiss.server_app import run_state, simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from edelweiss.server_app.memory_estimate import advice, require_memory, stack_of, worth_it
from edelweiss.server_app.recorder import Recorder
from tests.problems.example import make
from tests.said import has, lines
from tests.server_app.sites import Elsewhere, SiteGrid, hospitals, job, sabotage, saddle_job, site_job

SITES = 7


def played(folder: Path, **keys: Value) -> Result:
    """Play a run over seven sites of different sizes, or of a problem without data, whose draws are many at once."""
    keys |= {"problem": "invariant-logistic", "local-steps": 50} if keys["algorithm"] == "fcsg" else {}
    return simulate(job(folder, sites=SITES, engine="local", **keys))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["codasca", "fcsg"])
def test_the_bits_are_those_of_any_number_of_workers_and_the_numbers_those_of_one_by_one(
    tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    original = together.StackedOracle
    monkeypatch.setattr(
        together, "StackedOracle", lambda problem, oracles: sizes.append(len(oracles)) or original(problem, oracles)
    )
    here = played(tmp_path / "a", algorithm=algorithm, stack=3)
    assert max(sizes) == 3
    workers = played(tmp_path / "b", algorithm=algorithm, stack=3, workers=2)
    alone = played(tmp_path / "c", algorithm=algorithm, workers=2)
    for name, vector in here.arrays.items():
        np.testing.assert_array_equal(vector, workers.arrays[name])
        np.testing.assert_allclose(vector, alone.arrays[name], rtol=1e-4, atol=1e-6)
    for one, other in zip(here.metrics, workers.metrics, strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }
    assert [one["gradients"] for one in here.metrics] == [one["gradients"] for one in alone.metrics]


def test_a_stack_holds_sites_where_positives_are_rare_and_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the built-in sites, thinned, six have few positives, one has many, and one none: the run says which."""
    keys: dict[str, Value] = {"thin-share": 0.1, "rounds": 2, "workers": 1, "device": "cpu", "report": False}
    each = [
        simulate({**keys, "stack": stack, "runs-dir": str(tmp_path / str(stack))}, quiet=stack == 1).arrays["x"]
        for stack in (1, 8)
    ]
    np.testing.assert_allclose(*each, rtol=1e-4, atol=1e-5)
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith('sampler = "auto"')]
    assert "site-4" not in line
    assert "4 of the 16" in line
    uniform = simulate({**keys, "sampler": "uniform", "runs-dir": str(tmp_path / "uniform")}).arrays["x"]
    assert np.abs(each[0] - uniform).max() > 1e-3


@pytest.mark.usefixtures("sabotaged")
@pytest.mark.parametrize("harm", ["nan", "raise"])
def test_one_that_fails_costs_nobody_else_of_its_stack(
    tmp_path: Path, harm: str, capsys: pytest.CaptureFixture
) -> None:
    keys = {"problem": "auc", "dataset": "breast-cancer", "stack": 4, "min-replies": 3, "engine": "local"}
    result = simulate(
        {key: value for key, value in sabotage(tmp_path, harm).items() if "saddle" not in key} | keys, quiet=False
    )
    assert len(result.metrics) == 4
    [left_out] = lines("".join(capsys.readouterr()), "[left out]")
    assert "'site-2'" in left_out


def test_who_cannot_be_stacked_is_named_once_and_trained_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    result = simulate(saddle_job(tmp_path, stack=0, engine="local"), quiet=False)
    assert len(lines("".join(capsys.readouterr()), "problem = 'saddle'")) == 1
    same = simulate(saddle_job(tmp_path / "one", engine="local"))
    np.testing.assert_array_equal(result.arrays["x"], same.arrays["x"])


def test_other_engines_do_not_stack_and_say_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = site_job(tmp_path, stack=8)
    with SiteGrid(config, hospitals(tmp_path)) as grid:
        coordinate(config, Elsewhere(grid), Progress(quiet=False))  # type: ignore[arg-type]
    assert lines("".join(capsys.readouterr()), "stack = 8", 'engine = "local"')


def test_how_many_are_stacked_depends_on_the_run_and_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on workers, so that they do not change the bits; with more parameters fewer are."""
    monkeypatch.setattr("edelweiss.server_app.memory_estimate.cores", lambda: 4)

    problem = make("auc")

    def chosen(d: int, **keys: Value) -> int:
        config = RunConfig.parse({"engine": "local", "sites": 1000, "stack": 0} | keys)
        return stack_of(config, problem, d, Progress(quiet=True))

    assert chosen(1000) == chosen(1000, workers=7) > 32
    assert chosen(1000, sites=40) == 10
    assert chosen(1000, sites=10) == 8
    assert chosen(1000, sites=3) == 3
    assert 1 <= chosen(10**7) < chosen(10**6) < chosen(10**5)
    assert chosen(10**9) == 1
    assert chosen(1000, stack=5) == 5
    assert chosen(1000, stack=5, sites=3) == 3


@pytest.mark.parametrize(("share", "stack"), [(0.5, 16), (0.9, 1), (None, 1)])
def test_who_would_not_be_faster_side_by_side_is_trained_one_by_one(
    share: float | None, stack: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Nor is one for whom a GPU has no memory."""

    def tried(*arguments: object) -> float:
        if share is None:
            raise RuntimeError("CUDA out of memory")
        return share

    monkeypatch.setattr("edelweiss.server_app.memory_estimate.relative_time", tried)
    assert worth_it(RunConfig.parse({"stack": 0}), make("auc"), 16, Progress(quiet=False)) == stack
    assert bool(lines("".join(capsys.readouterr()), 16)) == (stack == 1)


def test_one_client_is_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edelweiss.server_app.memory_estimate.relative_time", lambda *arguments: pytest.fail("tried"))
    assert worth_it(RunConfig.parse({"stack": 0}), make("auc"), 1, Progress(quiet=True)) == 1


@pytest.mark.parametrize("algorithm", ["codasca", "fedavg", "dispfl", "fedgda-gt"])
@pytest.mark.parametrize("sites", [8, 63, 64, 1000])
@pytest.mark.parametrize("stack", [0, 1, 8])
@pytest.mark.parametrize("seconds", [1.0, 100.0])
def test_who_could_be_stacked_and_is_not_is_told_so_where_it_may_pay(
    algorithm: str, sites: int, stack: int, seconds: float
) -> None:
    problem = make("auc" if algorithm in ("codasca", "fedgda-gt") else "bce")
    keys: dict[str, Value] = {"engine": "local", "sites": sites, "algorithm": algorithm, "problem": problem.name}
    config = RunConfig.parse(keys | {"stack": stack, "bn": "local"})
    said = advice(config, problem, 1000, seconds)
    assert bool(said) == (stack == 1 and sites >= 64 and seconds > 10 and algorithm in ("codasca", "fedavg"))
    if said:
        would = stack_of(config.model_copy(update={"stack": 0}), problem, 1000, Progress(quiet=True))
        assert f"stack = 0 would try {would} of them" in said


@pytest.mark.parametrize("stack", [0, 1])
def test_that_is_said_before_the_first_round(
    stack: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("edelweiss.server_app.memory_estimate.LONG", 0.0)
    keys = job(tmp_path, algorithm="fedavg", problem="bce", model="linear", sites=64, rounds=1, stack=stack)
    simulate(keys | {"partition": "iid", "test-share": 0.0, "holdout-share": 0.0, "thin-share": 0.0}, quiet=False)
    before, _, after = capsys.readouterr().out.partition("round 1/1")
    assert bool(lines(before, "stack = 1")) == (stack == 1)
    assert not lines(after, "stack = 0")


def test_large_images_between_the_layers_make_stacks_small() -> None:
    problem = make("auc", model="lenet5", shape=(1, 28, 28), dtype=torch.float32)

    def chosen(size: int) -> int:
        config = RunConfig.parse({"engine": "local", "sites": 10**4, "stack": 0, "batch-size": size})
        return stack_of(config, problem, 60_000, Progress(quiet=True))

    assert 8 <= chosen(64) < chosen(8)
    assert chosen(1000) == 1


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_run_that_goes_on_keeps_its_stacks(share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is faster by then: so it has the bits of a run that was not stopped."""
    run = job(tmp_path, algorithm="codasca", sites=SITES, rounds=4, stack=0, engine="local", checkpoint_every=1)
    monkeypatch.setattr(run_state, "SHARE", math.inf)
    monkeypatch.setattr("edelweiss.server_app.memory_estimate.relative_time", lambda *arguments: share)
    whole = simulate(run)

    def stop(report: Recorder, server_round: int, *rest: object) -> None:
        trained(report, server_round, *rest)
        if server_round == 3:
            raise KeyboardInterrupt

    trained = Recorder.trained
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "trained", stop)
        with pytest.raises(KeyboardInterrupt):
            simulate(run | {"run-name": "stopped"})
    folder = tmp_path / "runs" / "stopped"
    assert StoredTensors.read(folder / "state.safetensors").facts["stack"] == (SITES if share == 0.5 else 1)
    monkeypatch.setattr("edelweiss.server_app.memory_estimate.relative_time", lambda *arguments: 1.4 - share)
    rest = simulate({"resume": str(folder)})
    assert len(rest.metrics) == 4
    for name, vector in whole.arrays.items():
        np.testing.assert_array_equal(vector, rest.arrays[name])


def test_a_stack_that_memory_does_not_hold_is_refused_with_one_that_it_does() -> None:
    config = RunConfig.parse({"engine": "local", "sites": 10**5, "stack": 10**5})
    with pytest.raises(RunError, check=has("stack = 100000", key="stack", value=10**5)):
        require_memory(config, 10**6, 2, 10**5, 0)
