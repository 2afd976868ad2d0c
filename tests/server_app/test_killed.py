"""A coordinator that is killed, or stopped for a while, at any moment, and disks that are full: nothing is lost."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from edelweiss.client_app.memory import Memory
from edelweiss.common import to_toml
from edelweiss.federation import RunError
from edelweiss.models.storage import write_tensors
from edelweiss.server_app import Result, run_state, simulate
from edelweiss.server_app.recorder import Recorder
from tests.said import has, lines, warnings
from tests.server_app.command import command
from tests.server_app.sites import saddle_job

ROUNDS = 30
KILLS = 4  # then it may end


def job(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """A run that remembers; of several workers, each serves any site."""
    found = saddle_job(folder, algorithm="codasca", rounds=ROUNDS, run_name=name, fraction=0.75, **changes)
    return {key: value for key, value in found.items() if not key.startswith("local-sgda.")}


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return simulate(job(tmp_path_factory.mktemp("quiet"), "quiet"))


def assert_same(folder: Path, quiet: Result) -> None:
    """Compare what is in the folder with a run that nobody disturbed."""
    model = load_file(folder / "model.safetensors")
    assert all(np.array_equal(model[name], vector) for name, vector in quiet.arrays.items())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    expected = json.loads(json.dumps(quiet.metrics).replace("NaN", "null"))
    for line, other in zip(lines, expected, strict=True):
        assert {k: v for k, v in line.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }


def is_complete(folder: Path) -> bool:
    status = folder / "status.json"
    return status.exists() and json.loads(status.read_text())["status"] == "complete"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deployments) for seed in range(1, 3))])
def test_at_random_moments(
    tmp_path: Path, quiet: Result, seed: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "edelweiss.server_app.local.ROOM", math.inf
    )  # a killed coordinator leaves its folder: below tmp_path
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run_state, "SHARE", math.inf if seed % 2 else 0.5)
    moments = random.Random(seed)
    attempt = kills = 0
    folder = tmp_path
    while True:
        attempt += 1
        if (folder / "config.toml").exists():
            config = f'resume="{folder}"'
        else:  # it was killed before it had a folder, or with it
            folder = tmp_path / "runs" / f"killed-{attempt}"
            (tmp_path / "job.toml").write_text(to_toml(job(tmp_path, folder.name, workers=workers)))
            config = str(tmp_path / "job.toml")
        with command(config) as coordinator:
            if kills < KILLS:
                time.sleep(moments.uniform(0, 0.4))
                if moments.random() < 0.3:
                    os.kill(coordinator.pid, signal.SIGSTOP)
                    time.sleep(0.1)
                    os.kill(coordinator.pid, signal.SIGCONT)
                else:
                    os.kill(coordinator.pid, signal.SIGKILL)
                kills += 1
            out = coordinator.stdout.read()
            err = coordinator.stderr.read()
            code = coordinator.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL, out + err
        if is_complete(folder):  # killed when all was written: there is nothing to go on with
            break
    assert_same(folder, quiet)
    assert is_complete(folder)
    assert not list(folder.glob("memory-*"))


# ---------------------------------------------------------------------- full disks


@contextmanager
def files_of(size: int) -> Iterator[None]:
    """Let no file grow beyond this many bytes: writing more fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "kept.safetensors"
    write_tensors(file, {"x": torch.ones(10)}, {})
    before = file.read_bytes()
    with files_of(1000), pytest.raises(OSError, check=has(errno=errno.EFBIG)):
        write_tensors(file, {"x": torch.ones(10_000)}, {})
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file], "half a file would fill the disk"


def test_a_run_whose_folder_is_removed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, folder = Recorder.trained, tmp_path / "runs" / "removed"

    def removing(report: Recorder, server_round: int, *rest: Any) -> None:
        trained(report, server_round, *rest)
        if server_round == 3:
            shutil.rmtree(folder)

    monkeypatch.setattr(Recorder, "trained", removing)
    with pytest.raises(RunError, check=has(key="run-name", value=folder)):
        simulate(saddle_job(tmp_path, run_name="removed"), quiet=False)
    assert not folder.exists()


def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = saddle_job(tmp_path, run_name="full", rounds=6) | {"saddle.dimension": 5000}
    quiet = simulate(keys | {"run-name": "quiet"})
    monkeypatch.setattr(run_state, "SHARE", math.inf)
    trained, full = Recorder.trained, files_of(20_000)

    def filling(report: Recorder, server_round: int, *rest: Any) -> None:
        trained(report, server_round, *rest)
        if server_round == 4:
            full.__enter__()

    monkeypatch.setattr(Recorder, "trained", filling)
    with pytest.raises(RunError, check=has("--run-config", key="resume")):
        simulate(keys, quiet=False)
    full.__exit__(None, None, None)
    assert warnings(capsys.readouterr().out, "round 4", "round 3"), "from which it could continue"
    monkeypatch.undo()
    resumed = simulate({"resume": str(tmp_path / "runs" / "full")}, quiet=False)
    assert lines(capsys.readouterr().out, "round 3 of 6")
    assert_same(resumed.folder, quiet)


class Usage(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


def test_room_is_looked_for_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = saddle_job(tmp_path) | {"saddle.dimension": 100_000}
    for free, every, enough in ((2_000_000, 0, True), (2_000_000, 1, False), (9_000_000, 1, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: Usage(10**9, 0, free))
        if enough:
            simulate(keys | {"checkpoint-every": every, "rounds": 1})
        else:
            with pytest.raises(RunError, check=has(key="runs-dir", value=4_800_000, allowed=free)):
                simulate(keys | {"checkpoint-every": every})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, 10_000))
    site = Memory(str(tmp_path / "state"), "7", "north", {"d": 1000})
    assert all(number in site.shortage() for number in ("10,000", "24,000"))
    monkeypatch.undo()
    assert not site.shortage()
