"""What a new hospital gets wrong: each mistake is one message, and nothing is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from edelweiss.client_app.cli import main
from edelweiss.server_app import simulate
from tests.client_app.newcomer import finished, newcomer
from tests.said import lines
from tests.server_app.sites import saddle_job, table, write_table


def _no_config(run: Path, data: Path) -> None:
    (run / "config.toml").unlink()


def _no_model(run: Path, data: Path) -> None:
    (run / "model.safetensors").unlink()


def _half_a_model(run: Path, data: Path) -> None:
    file = run / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-50])


def _no_facts(run: Path, data: Path) -> None:
    save_file(load_file(run / "model.safetensors"), run / "model.safetensors")


def _another_model(run: Path, data: Path) -> Sequence[str]:
    return ["--run-config", "hidden=9"]


def _no_such_layer(run: Path, data: Path) -> Sequence[str]:
    return ["--run-config", 'head="tail"']


def _all_is_head(run: Path, data: Path) -> Sequence[str]:
    return ["--run-config", 'head="body"']


def _no_data(run: Path, data: Path) -> None:
    shutil.rmtree(data)


def _other_width(run: Path, data: Path) -> None:
    features, labels = table(40, seed=3)
    write_table(data, features[:, :3], labels)


def _other_columns(run: Path, data: Path) -> None:
    write_table(data, *table(40, seed=3), names=["age", "pressure", "marker", "dose"])


def _nothing_held_out(run: Path, data: Path) -> Sequence[str]:
    return ["--run-config", "holdout-share=0.0"]


def _three_labels(run: Path, data: Path) -> None:
    features, _ = table(40, seed=3)
    write_table(data, features, np.arange(40) % 3)


def _one_class(run: Path, data: Path) -> None:
    write_table(data, *table(40, seed=3, positives=0))


def _no_label(run: Path, data: Path) -> Sequence[str]:
    return ["--label", "outcome"]


def _too_fast(run: Path, data: Path) -> Sequence[str]:
    return ["--lr", "1e30"]


def _no_device(run: Path, data: Path) -> Sequence[str]:
    return ["--device", "cuda:99"]


def _no_kind_of_device(run: Path, data: Path) -> Sequence[str]:
    return ["--device", "tpu"]


def _a_name_that_leads_out(run: Path, data: Path) -> Sequence[str]:
    return ["--site", "../../evil"]


def _a_name_that_cannot_be_printed(run: Path, data: Path) -> Sequence[str]:
    return ["--site", "a\0"]


def _unknown_key(run: Path, data: Path) -> Sequence[str]:
    return ["--run-config", "step=3"]


def _state_is_a_file(run: Path, data: Path) -> Sequence[str]:
    (run / "state").write_text("")
    return ["--state-dir", str(run / "state")]


@pytest.mark.parametrize(
    ("spoil", "code", "expected"),
    [
        (_no_config, 1, ["is not a run folder", "config.toml"]),
        (_no_model, 1, ["the run left no model.safetensors", "stopped"]),
        (_half_a_model, 1, ["model.safetensors cannot be used"]),
        (_no_facts, 1, ["describe its inputs"]),
        (_another_model, 1, ["do not belong together", "hidden = 8", "9"]),
        (_no_such_layer, 1, ["head = 'tail'", "body.1, body.3, head"]),
        (_all_is_head, 1, ["no separable head"]),
        (_no_data, 1, ["private-new cannot be read", "data.csv"]),
        (_other_width, 1, ["of size 3", "of size 4"]),
        (_other_columns, 1, ["not those that the model was trained on", "age"]),
        (_nothing_held_out, 1, ["no sample is held out", "holdout-share"]),
        (_three_labels, 1, ["label"]),
        (_one_class, 1, ["to train on are negative", "needs both classes", "check the label column"]),
        (_no_label, 1, ["no label column 'outcome'"]),
        (_too_fast, 1, ["diverges", "--lr 1e+30"]),
        (_no_device, 2, ["device = 'cuda:99'"]),
        (_no_kind_of_device, 2, ["device = 'tpu'", '"cuda:1"']),
        (_a_name_that_leads_out, 2, ["site = '../../evil'", "without /"]),
        (_a_name_that_cannot_be_printed, 2, ["site = 'a\\x00'"]),
        (_unknown_key, 2, ["unknown key 'step'"]),
        (_state_is_a_file, 1, ["cannot be written", "--state-dir"]),
    ],
)
def test_each_mistake_is_one_message_that_says_what_to_do(
    tmp_path: Path,
    spoil: Callable[[Path, Path], Sequence[str] | None],
    code: int,
    expected: Sequence[str],
    given_run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, data = tmp_path / "run", newcomer(tmp_path)
    shutil.copytree(given_run, run)
    arguments = ["--model", str(run), "--data-dir", str(data), "--state-dir", str(tmp_path / "state"), "--steps", "5"]
    assert main(["personalise", *arguments, *(spoil(run, data) or [])]) == code
    shown = capsys.readouterr()
    assert shown.out == "" or spoil is _state_is_a_file
    for text in expected:
        assert text in shown.err
    assert "Traceback" not in shown.err
    assert not (tmp_path / "state").exists(), "nothing is written"


@pytest.fixture(scope="module")
def given_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that all mistakes are made with."""
    return finished(tmp_path_factory.mktemp("given"), algorithm="codasca", problem="auc")


@pytest.mark.slow
def test_runs_that_share_no_body_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(newcomer(tmp_path))
    for folder, named in (
        (finished(tmp_path, algorithm="alone"), "algorithm = 'alone'"),
        (finished(tmp_path, algorithm="ditto", model="linear"), "model.safetensors"),
        (finished(tmp_path, algorithm="codasca", model="linear"), "head"),
    ):
        assert main(["personalise", "--model", str(folder), "--data-dir", data]) == 1
        assert lines(capsys.readouterr().err, named)
    folder = simulate(saddle_job(tmp_path)).folder
    assert main(["personalise", "--model", str(folder), "--data-dir", data]) == 1
    assert lines(capsys.readouterr().err, "problem = 'saddle'")


@pytest.mark.parametrize(
    "option",
    [
        ["--steps", "0"],
        ["--steps", str(10**12)],
        ["--steps", "many"],
        ["--lr", "0"],
        ["--lr", "nan"],
        ["--lr", "1e300"],
        ["--lr-dual", "-1"],
    ],
)
def test_numbers_out_of_range_are_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["personalise", "--model", "runs/x", "--data-dir", "data", *option])
    assert ended.value.code == 2
    assert f"argument {option[0]}" in capsys.readouterr().err


@pytest.mark.slow
def test_somebody_elses_model_of_this_name_is_refused_and_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, state = newcomer(tmp_path), tmp_path / "state"
    kept: list[Any] = []
    for hidden in (8, 9):
        folder = finished(tmp_path, algorithm="codasca", hidden=hidden)
        place = tmp_path / f"{hidden}" / "same"
        shutil.copytree(folder, place)
        arguments = ["--model", str(place), "--data-dir", str(data), "--state-dir", str(state), "--steps", "2"]
        code = main(["personalise", *arguments])
        [file] = (state / "models").glob("*.safetensors")
        kept.append((code, file.read_bytes()))
    assert [code for code, _ in kept] == [0, 1]
    assert kept[0][1] == kept[1][1]
    assert lines(capsys.readouterr().err, "same-private-new.safetensors")
