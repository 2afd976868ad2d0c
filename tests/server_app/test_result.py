"""What a run returns and leaves behind, and that both are true."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from edelweiss.common import Value
from edelweiss.config import ConfigError, RunConfig, flatten, read_overrides
from edelweiss.datasets import load_test
from edelweiss.federation import RunError
from edelweiss.lab.cli import main
from edelweiss.models import build
from edelweiss.problems.metrics import ranking
from edelweiss.server_app import Result, run_state, simulate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from edelweiss.server_app.recorder import Recorder
from tests.conftest import LEAVE_REPORT
from tests.said import has, warnings
from tests.server_app.sites import REPORT, job, sabotage, saddle_job


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One run that several tests look at, with its report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edelweiss.server_app.coordinator.leave_report", LEAVE_REPORT)
        return simulate(job(tmp_path_factory.mktemp("result")))


def strict(line: str) -> Any:
    """Parse JSON as the standard has it: no NaN, no Infinity."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)


# ---------------------------------------------------------------------- what is returned


@pytest.mark.slow
def test_metrics_are_one_dictionary_per_round(result: Result) -> None:
    assert [record["round"] for record in result.metrics] == [1, 2, 3]
    for record in result.metrics:
        assert {"loss", "auroc", "auprc", "central", "pooled", "sites"} <= record.keys()
        assert {"gradients", "bytes-down", "bytes-up", "seconds", "seconds-waiting"} <= record.keys()
        assert list(record["sites"]) == ["site-0", "site-1", "site-2"]
        # The headline is the common test set, where there is one.
        assert all(record[name] == record["central"][name] for name in ("loss", "auroc", "auprc"))
        assert record["gradients"] == 9
        assert 0 <= record["seconds-waiting"] <= record["seconds"]
        assert record["pooled"]["n"] == sum(site["n"] for site in record["sites"].values())
        assert record["pooled"]["positives"] is not None


def test_arrays_are_flat_and_the_callers_own(result: Result) -> None:
    assert sorted(result.arrays) == ["x", "y"]
    for vector in result.arrays.values():
        assert isinstance(vector, np.ndarray)
        assert vector.ndim == 1
        assert vector.dtype == np.float32
        vector += 0  # may be written to


def test_a_configuration_may_be_nested_or_flat(tmp_path: Path) -> None:
    keys = {key: value for key, value in saddle_job(tmp_path).items() if key != "local-sgda.lr"}
    nested = simulate(keys | {"local-sgda": {"lr": 0.05}})  # type: ignore[operator]
    flat = simulate(keys | {"local-sgda.lr": 0.05})
    assert np.array_equal(nested.arrays["x"], flat.arrays["x"])


def test_quiet_is_quiet_and_aloud_is_a_line_per_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(saddle_job(tmp_path))
    assert capsys.readouterr().out == ""
    simulate(saddle_job(tmp_path), quiet=False)
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("round ")] == ["1/4", "2/4", "3/4", "4/4"]
    assert all(f"site-{k}" in out for k in range(4))
    assert "\x1b" not in out  # no colours where there is no terminal


@pytest.mark.parametrize(("every", "evaluated"), [(0, [5]), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_evaluation_comes_when_it_is_due_and_at_the_end(tmp_path: Path, every: int, evaluated: list[int]) -> None:
    records = simulate(saddle_job(tmp_path, rounds=5, evaluate_every=every)).metrics
    assert [record["round"] for record in records if "sites" in record] == evaluated
    assert [record["round"] for record in records if "central" in record] == evaluated


@pytest.mark.slow
def test_evaluation_does_not_change_the_run(tmp_path: Path) -> None:
    often, never = (simulate(job(tmp_path, evaluate_every=every)) for every in (1, 0))
    assert np.array_equal(often.arrays["x"], never.arrays["x"])


def test_without_a_common_test_set_the_sites_are_the_headline(tmp_path: Path) -> None:
    for record in simulate(job(tmp_path, central_test=False, rounds=2)).metrics:
        assert "central" not in record
        assert record["auroc"] == record["pooled"]["auroc"]


# ---------------------------------------------------------------------- bytes


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_fedavg_moves_x_each_way(tmp_path: Path, fraction: float) -> None:
    keys: dict[str, Value] = {"algorithm": "fedavg", "problem": "bce", "sites": 4, "fraction": fraction}
    result = simulate(job(tmp_path, **keys))
    d = sum(p.numel() for p in build("mlp", (30,), 1, hidden=8).parameters())
    assert result.arrays["x"].size == d
    # The last evaluation goes to all sites, and is in no round's line.
    for record in result.metrics:
        assert record["bytes-down"] == record["bytes-up"] == 4 * fraction * 4 * d


def test_codasca_moves_corrections_once_there_are_any(result: Result, tmp_path: Path) -> None:
    x, y = 4 * result.arrays["x"].size, 4 * result.arrays["y"].size
    assert x == 4 * (2 + sum(p.numel() for p in build("mlp", (30,), 1, hidden=8).parameters()))  # and a, b of the AUC
    down = [record["bytes-down"] for record in result.metrics]
    assert down == [3 * (x + y)] + 2 * [3 * (3 * x + 2 * y)]  # later also cx, cy, x_ref
    assert [record["bytes-up"] for record in result.metrics] == 3 * [3 * (2 * x + 2 * y)]


# ---------------------------------------------------------------------- the run folder


def test_the_folder_holds_what_was_promised(result: Result) -> None:
    promised = {"config.toml", "evidence.json", "metrics.jsonl", "model.safetensors", "status.json", *REPORT}
    assert {path.name for path in result.folder.iterdir()} == promised
    assert (result.folder / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_metrics_jsonl_is_a_line_of_json_per_round(result: Result) -> None:
    lines = [strict(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == json.loads(json.dumps(result.metrics).replace("NaN", "null"))


def test_config_toml_reproduces_the_run_bit_for_bit(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"codasca.lr": 0.07, "seed": 3, "stage-iterations": 6, "fraction": 0.6}
    first = simulate(job(tmp_path) | keys)
    assert main(["--run-config", str(first.folder / "config.toml")]) == 0
    [second] = {*first.folder.parent.iterdir()} - {first.folder}
    for name in ("config.toml", "model.safetensors"):
        assert (first.folder / name).read_bytes() == (second / name).read_bytes()
    lines = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (first.folder, second)]
    numbers = [[{k: v for k, v in strict(line).items() if "seconds" not in k} for line in file] for file in lines]
    assert numbers[0] == numbers[1]


def test_config_toml_is_what_was_asked_for(tmp_path: Path) -> None:
    asked = job(tmp_path) | {"codasca.lr": 0.07, "algorithm": "codasca"}
    written = read_overrides([str(simulate(asked).folder / "config.toml")])
    assert {key: written[key] for key in asked} == asked


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize(("problem", "algorithm"), [("auc", "codasca"), ("bce", "fedavg")])
def test_the_model_file_is_a_state_dict_that_gives_the_reported_auroc(
    tmp_path: Path, problem: str, algorithm: str, standardise: bool
) -> None:
    result = simulate(job(tmp_path, problem=problem, algorithm=algorithm, standardise=standardise))
    module = build("mlp", (30,), 1, hidden=8)
    file = result.folder / "model.safetensors"
    module.load_state_dict(load_file(file), strict=True)
    with safe_open(file, "pt") as opened:
        facts = json.loads(opened.metadata()["edelweiss"])
    assert sorted(set(facts) & {"a", "b", "alpha"}) == (["a", "alpha", "b"] if problem == "auc" else [])
    # All that is needed to use the model is in its file: also what its inputs are standardised with.
    test = load_test(RunConfig.parse(flatten(job(tmp_path))).data())
    assert test is not None
    assert ("shift" in facts) == standardise
    if standardise:
        test = test.standardised(*(torch.tensor(facts[key]) for key in ("shift", "scale")))
    inputs, labels = test.batch(torch.arange(len(test)))
    with torch.no_grad():
        scores = module.eval()(inputs).squeeze(1)
    expected = ranking(labels.numpy(), scores.numpy())
    assert expected["auroc"] == result.metrics[-1]["central"]["auroc"]
    assert expected["auprc"] == result.metrics[-1]["central"]["auprc"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The model files after 1, 2, 3 and 4 rounds; nothing after none."""
    folder = tmp_path_factory.mktemp("models")
    runs = [simulate(saddle_job(folder, rounds=rounds)).folder for rounds in range(1, 5)]
    files = [b"", *((run / "model.safetensors").read_bytes() for run in runs)]
    assert len(set(files)) == 5
    return files


@pytest.mark.parametrize(("every", "files"), [(0, [0, 0, 0, 0, 0]), (1, [0, 1, 2, 3, 4]), (2, [0, 0, 2, 2, 4])])
def test_checkpoints_are_written_as_the_run_goes(
    tmp_path: Path, every: int, files: list[int], models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    trained = Recorder.trained

    def looking(report: Recorder, server_round: int, *rest: dict[str, float]) -> None:
        file = report.folder / "model.safetensors"
        seen.append(file.read_bytes() if file.exists() else b"")
        trained(report, server_round, *rest)

    monkeypatch.setattr(Recorder, "trained", looking)
    monkeypatch.setattr(run_state, "SHARE", math.inf)  # it may take all the time it wants
    simulate(saddle_job(tmp_path, rounds=5, checkpoint_every=every))
    assert seen == [models[rounds] for rounds in files]


def test_folders_of_runs_are_never_shared(tmp_path: Path) -> None:
    folders = [simulate(saddle_job(tmp_path, rounds=1, run_name=name)).folder for name in ("a", "", "", "../a")]
    assert len(set(folders)) == 4
    assert {folder.parent for folder in folders} == {(tmp_path / "runs").resolve()}


@pytest.mark.usefixtures("sabotaged")
def test_a_name_that_a_run_has_is_refused_and_that_run_is_left(tmp_path: Path) -> None:
    folder = simulate(saddle_job(tmp_path, run_name="a b")).folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigError, check=has("'a-b'", folder, keys=["run-name"])):
        simulate(saddle_job(tmp_path, run_name="a-b"))
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(RunError, check=has(key="on-bad-update", round=2)):
        simulate(sabotage(tmp_path, "nan", on_bad_update="stop", when=2, run_name="stopped"))
    with pytest.raises(ConfigError, check=has(f"resume = '{tmp_path / 'runs' / 'stopped'}'", keys=["run-name"])):
        simulate(saddle_job(tmp_path, run_name="stopped"))
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"a-b", "stopped"}


@pytest.mark.usefixtures("sabotaged")
def test_a_run_that_never_trained_gives_its_name_away(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        simulate(sabotage(tmp_path, "raise", when=1, victim=0, run_name="it"))
    assert simulate(saddle_job(tmp_path, run_name="it")).folder.name == "it"


@pytest.mark.usefixtures("sabotaged")
def test_a_run_that_stops_keeps_its_last_model(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        simulate(sabotage(tmp_path, "nan", on_bad_update="stop", when=4, checkpoint_every=0, run_name="stopped"))
    reached = simulate(saddle_job(tmp_path, rounds=3, run_name="reached"))
    stopped = tmp_path / "runs" / "stopped" / "model.safetensors"
    assert stopped.read_bytes() == (reached.folder / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("curves")
def test_curves_that_cannot_be_written_cost_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("edelweiss.lab.report.write_report", full)
    folder = simulate(saddle_job(tmp_path), quiet=False).folder
    assert warnings(capsys.readouterr().out, folder, "No space left on device")
    assert json.loads((folder / "status.json").read_text())["status"] == "complete"


def test_a_read_only_shared_memory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def access(path: object, mode: int) -> bool:
        return path != "/dev/shm" and os.access(path, mode)  # type: ignore[arg-type]

    monkeypatch.setattr("edelweiss.server_app.local.os.access", access)
    with LocalGrid(RunConfig.parse(saddle_job(tmp_path)), unused_run_id()) as grid:
        assert grid.scratch.path.parent == Path(tempfile.gettempdir())
