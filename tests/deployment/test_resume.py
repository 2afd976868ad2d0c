"""The coordinator dies under Flower: who submitted the run is told, and the run goes on to the same bits."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from edelweiss.common import Value, to_toml
from edelweiss.server_app import simulate
from tests.deployment import processes
from tests.deployment.processes import followed
from tests.server_app.sites import saddle_job

pytestmark = [pytest.mark.deployments, pytest.mark.usefixtures("nothing_runs_on")]

SITES, ROUNDS = 2, 25


def job(folder: Path, name: str, **keys: Value) -> dict[str, Value]:
    """A run of an algorithm that remembers."""
    found = saddle_job(folder, algorithm="codasca", sites=SITES, state_dir=str(folder / "state"), run_name=name, **keys)
    return {key: value for key, value in found.items() if not key.startswith("local-sgda.")}


def assert_same(folder: Path, quiet: Path) -> None:
    """Compare what two runs left."""
    models = [load_file(place / "model.safetensors") for place in (folder, quiet)]
    assert all(np.array_equal(models[0][name], vector) for name, vector in models[1].items())
    lines = [(place / "metrics.jsonl").read_text().splitlines() for place in (folder, quiet)]
    numbers = [[{k: v for k, v in json.loads(line).items() if "seconds" not in k} for line in text] for text in lines]
    assert numbers[0] == numbers[1]
    assert status(folder)["status"] == "complete"


def status(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "status.json").read_text()))


def test_a_server_app_that_is_killed(tmp_path: Path) -> None:
    nodes: list[dict[str, Value]] = [
        {"partition-id": k, "num-partitions": SITES, "state-dir": str(tmp_path / f"state-{k}")} for k in range(SITES)
    ]
    folder = tmp_path / "runs" / "killed"
    with processes.deployment(tmp_path, nodes), ThreadPoolExecutor() as executor:
        address = tomllib.loads((tmp_path / "config.toml").read_text())["superlink"]["own"]["address"]
        submit = [sys.executable, "-u", "-m", "edelweiss", "submit", "--superlink", address, "--insecure"]
        settings = tmp_path / "job.toml"
        settings.write_text(to_toml(job(tmp_path, "killed", rounds=ROUNDS)))
        resumed: list[Any] = []

        def kill(_: int) -> None:
            # A round is stored once that costs a small share of the run's time: on a fast machine some rounds later.
            processes.until((folder / "state.safetensors").exists)
            os.kill(status(folder)["process"], signal.SIGKILL)
            # The SuperLink takes a minute to notice; the run can go on before that.
            go_on = [*submit, "--run-config", f'resume="{folder}"']
            resumed.append(executor.submit(followed, go_on, folder, 0))

        code, said = followed([*submit, "--run-config", str(settings)], folder, 1, kill)
        assert code == 4, said
        assert said.splitlines()[-1].startswith("error: the run is lost"), said
        code, said = resumed[0].result()
        assert code == 0, said
        found = re.search(r"resumes after round (\d+) of", said)
        assert found, said
        assert int(found[1]) in range(1, ROUNDS), said
        assert said.splitlines()[-1] == f"results: {folder}"
    assert_same(folder, simulate(job(tmp_path, "quiet", rounds=ROUNDS)).folder)
    assert not list(tmp_path.glob("state-*/run-*"))
