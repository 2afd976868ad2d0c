"""Signed runs of real site processes at a real SuperLink, submitted by the command line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from edelweiss.common.overrides import toml_value
from edelweiss.lab.submission import REPO, stage
from edelweiss.server_app.tickets import EXECUTOR_KEY
from tests.deployment.host import Host
from tests.deployment.processes import PATIENCE, Federation, deployment, process_logs
from tests.server_app.studies import Study

pytestmark = pytest.mark.deployments


def submitted(federation: Federation, *options: str, **keys: object) -> tuple[int, str]:
    """Submit a run as its user does; return the exit code and all that was said."""
    address = tomllib.loads((federation.home / "config.toml").read_text())["superlink"]["own"]["address"]
    command = [sys.executable, "-m", "edelweiss", "submit", "--superlink", address, "--insecure", *options]
    command += ["--run-config", " ".join(f"{key.replace('_', '-')}={toml_value(value)}" for key, value in keys.items())]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout + done.stderr + process_logs(federation.home)


def test_hospitals_and_their_coordinator_take_signed_runs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(tmp_path / "study")
    monkeypatch.setenv(EXECUTOR_KEY, str(study.folder / "executor.key"))
    job = {"dataset": "site", "sites": 2, "rounds": 2, "local_steps": 1, "runs_dir": str(tmp_path / "runs")}
    signing = ["--study-key", str(study.folder / "study.key"), "--sites", str(study.folder / "public")]
    signing += ["--executor", str(study.folder / "executor.key.pub")]
    with deployment(tmp_path, study.nodes) as running:
        code, said = submitted(running, *signing, **job, run_name="signed")
        assert code == 0, said
        assert (tmp_path / "runs" / "signed" / "model.safetensors").exists()
        assert "counts as none" not in said
        code, said = submitted(running, **job, run_name="unsigned")
        assert code == 1
        assert said.count("this site takes part in none without (study-keys)") >= 2
        assert "Traceback" not in said
        stranger = [part.replace("study.key", "stranger.key") for part in signing]
        code, said = submitted(running, *stranger, **job, run_name="stranger")
        assert code == 1
        assert "no study key that is pinned here" in said


def test_the_executor_runs_no_code_of_a_bundle(tmp_path: Path, certificates: Path) -> None:
    """Not that of a foreign app, nor of ours in another release, though both reach the Control API."""
    host = Host(tmp_path, certificates)
    with host.up("superlink"), host.up("serverapp"):
        for name in ("foreign", "release"):
            mark = tmp_path / f"{name} was here"
            trap = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
            app = stage(tmp_path / name)
            project = app / "pyproject.toml"
            text = project.read_text().replace("fab-include = [", 'fab-include = ["foreign.py", ')
            if name == "foreign":
                text = text.replace('"edelweiss.server_app.app:app"', '"foreign:app"')
            project.write_text(text)
            (app / "foreign.py").write_text(trap + FOREIGN)
            server = app / "edelweiss" / "server_app" / "app.py"
            server.write_text(server.read_text().replace("import ctypes\n", f"import ctypes\n{trap}", 1))
            said = host.flower("run", str(app), "--stream")
            assert "ticket is missing" in said
            assert not mark.exists(), name


FOREIGN = """
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    print("here")
"""
