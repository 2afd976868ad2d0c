"""`make run`: what it is told reaches the app as it was written, and a job for average precision runs to its end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from config import RunConfig
from keys import read_overrides

REPO = Path(__file__).resolve().parents[1]
AUPRC = ["auprc-breast-cancer", "auprc-heart"]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make_run(folder: Path, python: str, run_config: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Call make in the repository, with an environment in ``folder`` that is up to date; its Python is a script."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(f"#!/bin/sh\n{python}\n")
    (folder / "bin" / "python").chmod(0o755)
    for stamp in (".made", ".run"):
        (folder / stamp).touch()
    command = ["make", "--no-print-directory", "run", f"VENV={folder}", f"RUN_CONFIG={run_config}"]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(
    "run_config", [f"experiments/fcsg/{AUPRC[0]}.toml", """problem="auprc" run-name='a "b"'""", ""]
)
def test_run_config_goes_through_as_it_is(tmp_path: Path, run_config: str) -> None:
    show = f"""exec {sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" """
    done = make_run(tmp_path, show, run_config)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["bin/run.py", "--run-config", run_config]


@pytest.mark.parametrize("name", AUPRC)
def test_the_experiments_for_average_precision_are_read(name: str) -> None:
    config = RunConfig.parse(read_overrides([str(REPO / "experiments" / "fcsg" / f"{name}.toml")]))
    assert (config.problem, config.sampler, config.sites) == ("auprc", "fixed-positives", 4)
    assert config.strategy().name == "acc-fcsg-m"


@pytest.mark.slow
def test_average_precision_from_a_make_command(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    run_config = f'problem="auprc" algorithm="acc-fcsg-m" partition="iid" sites=2 rounds=2 runs-dir="{tmp_path}/runs"'
    done = make_run(tmp_path / "venv", f'exec {sys.executable} "$@"', run_config, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = (tmp_path / "runs").iterdir()
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2]
    assert 0 < records[-1]["auprc"] <= 1
