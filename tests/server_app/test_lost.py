"""A run whose process is gone is lost, and can be resumed in a word."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from edelweiss.common import to_toml
from edelweiss.lab.cli import main
from edelweiss.server_app.run_folder import mark_lost
from tests.server_app.command import command
from tests.server_app.sites import saddle_job


def killed(tmp_path: Path, name: str) -> Path:
    """Kill a run in its training; return its folder."""
    job, folder = saddle_job(tmp_path, rounds=300, run_name=name), tmp_path / "runs" / name
    (tmp_path / "job.toml").write_text(to_toml(job))
    with command(str(tmp_path / "job.toml")) as coordinator:
        deadline = time.monotonic() + 600
        while not (folder / "metrics.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert mark_lost(folder)["status"] == "running", "its process is there"
        os.kill(coordinator.pid, signal.SIGKILL)
        coordinator.wait()
    return folder


@pytest.mark.slow
def test_a_killed_run_is_lost_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = killed(tmp_path, "it")
    assert json.loads((folder / "status.json").read_text())["status"] == "running", "nobody has looked yet"
    status = mark_lost(folder)
    assert status["status"] == "lost"
    assert str(status["process"]) in status["reason"]
    assert json.loads((folder / "status.json").read_text())["status"] == "lost"
    (folder.parent / "another").mkdir()
    assert main(["resume", "--runs-dir", str(folder.parent)]) == 0
    assert mark_lost(folder)["status"] == "complete"
    assert main(["resume", "it", "--runs-dir", str(folder.parent)]) == 2, "it is complete"
    assert main(["resume", "--runs-dir", str(folder.parent)]) == 2, "no other can go on"
    assert main(["resume", "no-such", "--runs-dir", str(folder.parent)]) == 2
