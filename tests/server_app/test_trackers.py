"""Trackers: told of every round's numbers, and of no consequence for the run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from edelweiss.config import ConfigError
from edelweiss.server_app import simulate
from edelweiss.server_app.trackers import TRACKERS, numbers
from tests.said import has, lines
from tests.server_app.sites import saddle_job

NAMES = sorted(TRACKERS)


def installed(name: str) -> None:
    if not importlib.util.find_spec(name):
        pytest.skip(f"{name} is not installed")


def test_tensorboard_has_every_number_of_every_round(tmp_path: Path) -> None:
    installed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = simulate(saddle_job(tmp_path, tracker="tensorboard"))
    events = EventAccumulator(str(result.folder / "tensorboard"))
    events.Reload()
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert {*events.Tags()["scalars"]} == {name for line in lines for name, _ in numbers(line)}
    for name in ("central/distance-x", "cost/bytes-up"):
        told = {event.step: event.value for event in events.Scalars(name)}
        assert told == {line["round"]: pytest.approx(dict(numbers(line))[name]) for line in lines}


@pytest.mark.parametrize("name", NAMES)
def test_it_changes_no_bit_of_the_run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    alone, told = simulate(saddle_job(tmp_path)), simulate(saddle_job(tmp_path, tracker=name))
    assert all(np.array_equal(told.arrays[key], vector) for key, vector in alone.arrays.items())


@pytest.mark.parametrize("name", NAMES)
def test_without_its_package_no_run_starts(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edelweiss.server_app.trackers.importlib.util.find_spec", lambda package: None)
    with pytest.raises(ConfigError, check=has(f"pip install {name}", keys=["tracker"])):
        simulate(saddle_job(tmp_path, tracker=name))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("where", ["open", "log", "close"])
def test_its_troubles_are_said_once_and_cost_no_run(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise ConnectionError("no\nroute")

    monkeypatch.setattr("edelweiss.server_app.trackers.importlib.util.find_spec", lambda package: package)
    calls = {name: fails if name == where else lambda *_: None for name in ("open", "log", "close")}
    opened = fails if where == "open" else lambda *_: (calls["log"], calls["close"])
    monkeypatch.setitem(TRACKERS, "tensorboard", opened)
    result = simulate(saddle_job(tmp_path, tracker="tensorboard"), quiet=False)
    assert len(lines(capsys.readouterr().out, "tensorboard", "ConnectionError: no r")) == 1
    assert len(result.metrics) == 4
