"""The coordinator dies under Flower: who submitted the run is told, and the run goes on to the same bits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from keys import Value, to_toml
from server_app import simulate
from server_app.submission import REPO
from tests.deployment import processes
from tests.deployment.processes import RUN_TIMEOUT, until
from tests.server_app.sites import saddle_job

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_runs_on")]

SITES, ROUNDS = 2, 25


def job(folder: Path, name: str, **keys: Value) -> dict[str, Value]:
    """A run of an algorithm that remembers."""
    found = saddle_job(folder, algorithm="codasca", sites=SITES, state_dir=str(folder / "state"), run_name=name, **keys)
    return {key: value for key, value in found.items() if not key.startswith("local-sgda.")}


def followed(command: list[str], folder: Path, rounds: int, then: Callable[[int], None]) -> tuple[int, str]:
    """Run a command in a session of its own; after so many rounds ``then`` is called, with its pid.

    The run folder tells of them: what a run says reaches us later, on a busy machine when it is over. Returns the exit
    code and all that the command said.
    """
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, cwd=REPO, stdout=said, stderr=said, text=True, start_new_session=True) as process:
            until(lambda: process.poll() is not None or rounds_of(folder) >= rounds)
            then(process.pid)
            code = process.wait(timeout=RUN_TIMEOUT)
        said.seek(0)
        return code, said.read()


def rounds_of(folder: Path) -> int:
    """How many rounds a run folder knows of."""
    lines = folder / "metrics.jsonl"
    return lines.read_text().count("\n") if lines.exists() else 0


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
        submit = [sys.executable, "-u", "-m", "server_app", "submit", "--superlink", address, "--insecure"]
        settings = tmp_path / "job.toml"
        settings.write_text(to_toml(job(tmp_path, "killed", rounds=ROUNDS)))
        resumed: list[Any] = []

        def kill(_: int) -> None:
            os.kill(status(folder)["process"], signal.SIGKILL)
            # The SuperLink takes a minute to notice; the run can go on before that.
            go_on = [*submit, "--run-config", f'resume="{folder}"']
            resumed.append(executor.submit(followed, go_on, folder, 0, lambda _: None))

        code, said = followed([*submit, "--run-config", str(settings)], folder, 1, kill)
        assert code == 1, said
        assert said.splitlines()[-1] == "error: the run failed: finished:failed, No heartbeat received from the task"
        code, said = resumed[0].result()
        assert code == 0, said
        assert int(re.findall(r"goes on after round (\d+) of", said)[0]) in range(1, ROUNDS), said
        assert said.splitlines()[-1] == f"results: {folder}"
    assert_same(folder, simulate(job(tmp_path, "quiet", rounds=ROUNDS)).folder)
    assert not list(tmp_path.glob("state-*/run-*"))


def test_a_simulation_that_is_interrupted(tmp_path: Path) -> None:
    settings = tmp_path / "job.toml"
    settings.write_text(to_toml(job(tmp_path, "cut", rounds=ROUNDS)))

    folder = tmp_path / "runs" / "cut"
    command = [sys.executable, "bin/run.py", "--run-config", str(settings)]
    code, said = followed(command, folder, 3, lambda pid: os.killpg(pid, signal.SIGINT))  # as Ctrl-C does it
    assert code == 130, said
    assert status(folder)["status"] == "stopped", said
    outcome = processes.simulate(tmp_path, {"resume": str(folder)}, SITES)
    assert outcome.ok, outcome.log
    assert_same(folder, simulate(job(tmp_path, "quiet", rounds=ROUNDS)).folder)
    assert not list(tmp_path.glob("state/run-*"))
