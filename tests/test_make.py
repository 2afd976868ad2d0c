"""`make run`: what it is told reaches the app as it was written, and what comes of it is told to the user."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bin.run import is_path
from edelweiss.common import Value, read_overrides, to_toml
from edelweiss.common.options import suffixes
from edelweiss.config import RunConfig
from edelweiss.config.tables import tables
from edelweiss.server_app import simulate
from tests.deployment import processes
from tests.deployment.processes import followed, untimed
from tests.server_app.sites import REPORT

REPO = Path(__file__).resolve().parents[1]
AUPRC = ["auprc-breast-cancer", "auprc-heart"]

CRASHES = ("Traceback", "unhandled", "Exit Code", "exception")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make_command(folder: Path, python: str, run_config: str) -> list[str]:
    """Return a call of make with an environment in ``folder`` that is up to date; its Python is a script."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text(f"#!/bin/sh\n{python}\n")
    (folder / "bin" / "python").chmod(0o755)
    for stamp in (".made", ".run"):
        (folder / stamp).touch()
    return ["make", "--no-print-directory", "run", f"VENV={folder}", f"RUN_CONFIG={run_config}"]


def make_run(folder: Path, python: str, run_config: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """Call make in the repository."""
    command = make_command(folder, python, run_config)
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(
    "run_config", [f"experiments/fcsg/{AUPRC[0]}.toml", """problem="auprc" run-name='a "b"'""", ""]
)
def test_run_config_goes_through_as_it_is(tmp_path: Path, run_config: str) -> None:
    show = f"""exec {sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" """
    done = make_run(tmp_path, show, run_config)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["bin/run.py", "--run-config", run_config]


def test_the_demonstration_asks_for_its_rare_outcome(tmp_path: Path) -> None:
    show = f"""exec {sys.executable} -c 'import sys; print(sys.argv[-1])' "$@" """
    command = make_command(tmp_path, show, "")[:-1]
    environment = {key: value for key, value in os.environ.items() if key != "RUN_CONFIG"}
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=600)
    config = RunConfig.parse(read_overrides([done.stdout.strip()]))
    assert config.data().thin_share == 0.1
    assert RunConfig.parse({}).data().thin_share == 0, "and no other run has one"


@pytest.mark.parametrize("name", AUPRC)
def test_the_experiments_for_average_precision_are_read(name: str) -> None:
    config = RunConfig.parse(read_overrides([str(REPO / "experiments" / "fcsg" / f"{name}.toml")]))
    assert (config.problem, config.sampler, config.sites) == ("auprc", "fixed-positives", 4)
    assert config.strategy.name == "acc-fcsg-m"


@pytest.mark.deployments
@pytest.mark.usefixtures("nothing_runs_on")
def test_a_run_that_is_interrupted_says_where_its_results_are(tmp_path: Path) -> None:
    """And it goes on, to the bits of a quiet run."""
    job: dict[str, Value] = {"problem": "saddle", "algorithm": "codasca", "sites": 3, "rounds": 40}
    job |= {"runs-dir": str(tmp_path / "runs"), "state-dir": str(tmp_path / "state"), "run-name": "cut"}
    settings = tmp_path / "job.toml"
    settings.write_text(to_toml(job), encoding="utf-8")
    command = make_command(tmp_path / "venv", f'exec {sys.executable} "$@"', str(settings))
    folder = tmp_path / "runs" / "cut"
    code, said = followed(command, folder, 3, lambda pid: os.killpg(pid, signal.SIGINT))  # as Ctrl-C does it
    assert code != 0
    assert f"stopped; results so far are in {folder}" in said, said
    assert not [word for word in CRASHES if word in said]
    rounds = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, len(rounds) + 1))
    assert len(rounds) >= 3
    assert {path.name for path in folder.iterdir()} == {
        "config.toml",
        "metrics.jsonl",
        "model.safetensors",
        *REPORT,
        "sites.json",
        "state.safetensors",
        "status.json",
    }
    # What the sites remembered is where the user wanted it.
    assert sorted(path.name for path in tmp_path.glob("state/run-*/*")) == [f"site-{k}.memory" for k in range(3)]

    outcome = processes.simulate(tmp_path, {"resume": str(folder)}, 3)
    assert outcome.ok, outcome.log
    quiet = simulate(job | {"run-name": "quiet", "workers": 1})
    assert untimed(folder) == untimed(quiet.folder)
    model = load_file(folder / "model.safetensors")
    assert all(np.array_equal(model[name], vector) for name, vector in quiet.arrays.items())
    assert not list(tmp_path.glob("state/run-*"))


@pytest.mark.deployments
@pytest.mark.usefixtures("nothing_runs_on")
def test_a_file_is_found_from_the_callers_folder_and_a_mistake_in_it_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "graph.csv").write_text("0,1\n", encoding="utf-8")
    job = 'algorithm="d-psgd" d-psgd.topology="file" d-psgd.graph-file="graph.csv" problem="saddle" sites=3'
    job += ' runs-dir="r" engine="local" workers=1'  # ends before a client of the simulation would have started
    command = [sys.executable, str(REPO / "bin" / "run.py"), "--run-config", job]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    mistake = f"d-psgd.graph-file = '{tmp_path}/graph.csv': the graph is not connected"
    assert done.stdout.count(mistake) == 1, done.stdout
    assert not [word for word in CRASHES if word in done.stdout + done.stderr]
    assert (done.returncode, done.stderr) == (1, "run.py: the run failed, see above\n")


@pytest.mark.deployments
@pytest.mark.usefixtures("nothing_runs_on")
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGKILL, -9)])
def test_a_script_that_is_hung_up_or_killed_leaves_no_servers(
    tmp_path: Path, number: signal.Signals, code: int, servers: int
) -> None:
    command = [sys.executable, str(REPO / "bin" / "run.py"), "--run-config", f'problem="saddle" runs-dir="{tmp_path}"']
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as script:
        children = Path(f"/proc/{script.pid}/task/{script.pid}/children")
        deadline = time.monotonic() + 600
        while len(children.read_text().split()) < 2 + servers:  # `flwr`, who ends the servers, and they
            assert script.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.kill(script.pid, number)
        assert script.wait(timeout=600) == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_amid_a_finalizer_ends_the_script_too(number: signal.Signals, code: int) -> None:
    """Python drops an exception that a finalizer raises, and a signal's handler raises it wherever Python is."""
    script = f"""
import os, sys, time
from bin.run import heed_signals
class Last:
    def __del__(self):
        os.kill(os.getpid(), {number.value})
        time.sleep(0)
heed_signals()
try:
    Last()
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""
    assert subprocess.run([sys.executable, "-c", script], cwd=REPO, timeout=600).returncode == code


def test_ctrl_c_in_the_first_moments_is_no_crash() -> None:
    command = [sys.executable, "-X", "importtime", str(REPO / "bin" / "run.py"), "--run-config", "rounds=1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as script:
        assert script.stderr is not None
        while " socket" not in (line := script.stderr.readline()):  # among the first that it imports
            assert line
        script.send_signal(signal.SIGINT)
        assert "Traceback" not in script.stderr.read()
    assert script.returncode == 130


def test_whatever_is_declared_as_a_file_is_one_for_make_run() -> None:
    declared = {f"{name}.{key}" for name, found in tables().items() for key, f in found.items() if suffixes(f)}
    assert {"deprl.graph-file", "saddle.file"} <= declared
    assert {key for key in declared if not is_path(key)} == set()
    paths = {key for key, value in RunConfig.parse({}).flat().items() if is_path(key)}
    assert paths >= {"runs-dir", "state-dir", "data-root", "init-from", "pretrained", "resume"}
    assert all(isinstance(RunConfig.parse({}).flat()[key], str) for key in paths)
