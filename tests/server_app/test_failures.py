"""Sites that send nonsense, fail, fall silent or die: who is named, who goes on, what is kept."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from edelweiss.federation import RunError, TooFewRepliesError
from edelweiss.server_app import simulate
from edelweiss.server_app.coordinator import Result
from edelweiss.server_app.recorder import Recorder
from tests.said import has, lines, warnings
from tests.server_app import sites
from tests.server_app.command import command
from tests.server_app.sites import sabotage, saddle_job

pytestmark = pytest.mark.usefixtures("sabotaged")

LOST = {
    "nan": "in 'x'",
    "inf": "in 'y'",
    "raise": "SiteError: RuntimeError",
    "kill": "exit code -9",
    "hang": "round-timeout = 1 s",
}

ALL = [0, 1, 2, 3]


def usable(out: str) -> list[int]:
    """The sites that no warning names."""
    warnings = "".join(line for line in out.splitlines() if line.startswith("warning: "))
    return [k for k in ALL if f"'site-{k}'" not in warnings]


def distances(t: np.ndarray, b: np.ndarray, result: Result, taking_part: list[list[int]]) -> np.ndarray:
    """The model that local SGDA reaches in float64 when these sites take part in each round."""
    draw = np.random.default_rng([0, 0]).standard_normal((2, b.shape[1]))
    x, y = draw
    for those in taking_part:
        ends = []
        for k in those:
            xk, yk = x, y
            for _ in range(2):
                gx, gy = 10 * xk - t[k] * yk, b[k] - yk - t[k] * xk
                xk, yk = xk - 0.02 * gx, yk + 0.02 * gy
            ends.append((xk, yk))
        x, y = np.mean(ends, axis=0)
    return np.array([np.abs(result.arrays["x"] - x).max(), np.abs(result.arrays["y"] - y).max()])


@pytest.fixture
def coefficients(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    t, b = rng.uniform(0.5, 2, 4), rng.normal(size=(4, 5))
    np.savez(tmp_path / "saddle.npz", t=t, b=b)
    return tmp_path / "saddle.npz", t, b


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "workers"), [("nan", 1), ("inf", 1), ("raise", 1), ("nan", 2), ("raise", 2), ("kill", 2), ("hang", 4)]
)
def test_the_rest_goes_on_without_the_site_that_failed(
    tmp_path: Path,
    harm: str,
    workers: int,
    coefficients: tuple[Path, np.ndarray, np.ndarray],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, t, b = coefficients
    timeout = 1.0 if harm == "hang" else 60.0
    job = sabotage(tmp_path, harm, workers=workers, min_replies=1, round_timeout=timeout, **{"saddle.file": str(file)})
    result = simulate(job, quiet=False)
    out = capsys.readouterr().out
    assert warnings(out, "'site-2'", LOST[harm])
    rest = usable(out)
    # A worker that dies takes the message with it that waits there; nobody else is hurt.
    assert rest == [0, 1, 3] or (harm == "kill" and len(rest) == 2)
    assert len(result.metrics) == 4
    # Not only does it end: the model is the one that the remaining sites reach.
    assert distances(t, b, result, [ALL, rest, ALL, ALL]).max() < 1e-5
    assert distances(t, b, result, [ALL] * 4).max() > 1e-4


def test_by_default_a_bad_update_is_left_out_and_the_run_goes_on(
    tmp_path: Path, coefficients: tuple[Path, np.ndarray, np.ndarray]
) -> None:
    file, t, b = coefficients
    result = simulate(sabotage(tmp_path, "nan", **{"saddle.file": str(file)}))
    assert distances(t, b, result, [ALL, [0, 1, 3], ALL, ALL]).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("harm", "workers"), [("raise", 1), ("kill", 2), ("hang", 4)])
def test_without_the_site_the_run_stops_if_all_are_needed(tmp_path: Path, harm: str, workers: int) -> None:
    started = time.monotonic()
    timeout = 1.0 if harm == "hang" else 60.0
    with pytest.raises(TooFewRepliesError, check=has("min-replies=", round=2, allowed=4)) as caught:
        simulate(sabotage(tmp_path, harm, workers=workers, round_timeout=timeout))
    assert time.monotonic() - started < 60  # and not after the 600 s for which the site sleeps
    assert lines(str(caught.value), "'site-2'", LOST[harm])


def test_a_run_stops_at_a_bad_update_if_told_to(tmp_path: Path) -> None:
    named = ('on-bad-update = "stop"', "sabotage.lr = 0.02", "sabotage.lr-dual = 0.02")
    with pytest.raises(RunError, check=has(*named, round=2, key="on-bad-update", sites=("site-2",))):
        simulate(sabotage(tmp_path, "inf", on_bad_update="stop", min_replies=1))


def test_a_site_that_is_bad_in_every_round_is_left_out_of_every_round(
    tmp_path: Path, coefficients: tuple[Path, np.ndarray, np.ndarray]
) -> None:
    file, t, b = coefficients
    result = simulate(sabotage(tmp_path, "nan", again=1, min_replies=3, **{"saddle.file": str(file)}))
    assert distances(t, b, result, [ALL, *[[0, 1, 3]] * 3]).max() < 1e-5


def test_too_few_answers_stop_the_run_whatever_min_replies_allows(tmp_path: Path) -> None:
    with pytest.raises(TooFewRepliesError, check=has(value=3, allowed=4)):
        simulate(sabotage(tmp_path, "nan", min_replies=4))
    simulate(sabotage(tmp_path, "nan", min_replies=3))


def test_half_of_the_sites_are_not_most_of_them(tmp_path: Path) -> None:
    assert len(simulate(sabotage(tmp_path, "nan", sites=2, victim=1, min_replies=1)).metrics) == 4


def test_no_more_answers_are_needed_than_sites_are_asked(tmp_path: Path) -> None:
    result = simulate(saddle_job(tmp_path, algorithm="local-sgda", fraction=0.5, min_replies=3))
    assert len(result.metrics) == 4


@pytest.mark.usefixtures("curves", "unpainted")
@pytest.mark.parametrize("when", [1, 3])
def test_the_run_folder_keeps_what_was_reached(tmp_path: Path, when: int) -> None:
    with pytest.raises(RunError, check=has(round=when)):
        simulate(sabotage(tmp_path, "nan", when=when, on_bad_update="stop", run_name="kept"))
    folder = tmp_path / "runs" / "kept"
    reached = simulate(saddle_job(tmp_path, rounds=when - 1, report=False)) if when > 1 else None
    assert (folder / "config.toml").exists()
    if reached is None:
        assert not (folder / "metrics.jsonl").exists()
        return
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, when))
    assert lines[-1]["distance-x"] == reached.metrics[-1]["distance-x"]
    model = load_file(folder / "model.safetensors")
    assert {name: vector.tolist() for name, vector in model.items()} == {
        name: vector.tolist() for name, vector in reached.arrays.items()
    }
    assert (folder / "report.html").exists()


@pytest.mark.slow
def test_a_worker_that_dies_between_two_rounds_is_replaced(
    tmp_path: Path,
    coefficients: tuple[Path, np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As when the machine runs out of memory: that happens at any moment, also when a worker has nothing to do."""
    file, t, b = coefficients
    trained = Recorder.trained

    def killing(report: Recorder, server_round: int, *rest: dict[str, float]) -> None:
        trained(report, server_round, *rest)
        if server_round == 2:
            worker = multiprocessing.active_children()[0]
            worker.kill()
            worker.join()

    monkeypatch.setattr(Recorder, "trained", killing)
    job = saddle_job(tmp_path, workers=2, rounds=6, min_replies=1, **{"saddle.file": str(file)})
    result = simulate(job, quiet=False)
    out = capsys.readouterr().out
    assert warnings(out, "exit code -9")
    assert distances(t, b, result, [ALL, ALL, usable(out), ALL, ALL, ALL]).max() < 1e-5


@pytest.mark.slow
def test_answers_stay_right_after_a_worker_was_lost(
    tmp_path: Path, coefficients: tuple[Path, np.ndarray, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    # The new worker must not write where the one that lives writes.
    file, t, b = coefficients
    job = sabotage(tmp_path, "kill", workers=2, rounds=30, min_replies=1, when=1, **{"saddle.file": str(file)})
    result = simulate(job, quiet=False)
    assert len(result.metrics) == 30
    assert distances(t, b, result, [usable(capsys.readouterr().out), *[ALL] * 29]).max() < 1e-5


@pytest.mark.slow
def test_a_site_that_never_answers_again_does_not_take_the_others_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # It hangs in one worker after the other; each is replaced, or soon nobody would be left to work.
    job = sabotage(tmp_path, "hang", workers=2, again=1, min_replies=2, round_timeout=4.0)
    assert len(simulate(job, quiet=False).metrics) == 4
    assert len(warnings(capsys.readouterr().out, "'site-2'", "round-timeout")) == 3


@pytest.mark.slow
def test_what_nobody_waits_for_is_not_done_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One site uses up the time in this process; the messages to those behind it are void in the next round.
    monkeypatch.setattr(sites, "NAP", 6.0)
    result = simulate(sabotage(tmp_path, "hang", victim=0, min_replies=1, round_timeout=5.0))
    gradients = [record["gradients"] for record in result.metrics]
    assert gradients == [8, 2, 8, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGKILL, -9, ""), (signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "")],
)
def test_workers_end_with_their_coordinator(tmp_path: Path, number: signal.Signals, code: int, words: str) -> None:
    job = f'problem="saddle" rounds=1000000 workers=2 sites=2 runs-dir="{tmp_path}" device="cpu"'
    with command(job) as coordinator:
        workers = children(coordinator.pid)
        folder = folder_of(workers[0])
        if number == signal.SIGINT:  # as Ctrl-C does it
            os.killpg(coordinator.pid, number)
        else:
            os.kill(coordinator.pid, number)
        coordinator.stdout.read()
        said = coordinator.stderr.read()  # to the end: nobody holds the pipe any more
        assert coordinator.wait() == code
    assert number == signal.SIGKILL or said.strip() == words
    deadline = time.monotonic() + 600
    while (folder.exists() or any(map(runs, workers))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [worker for worker in workers if runs(worker)]
    assert not folder.exists()


def runs(process: int) -> bool:
    """Whether a process runs; one that ended and that was not requested its exit code does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def folder_of(worker: int) -> Path:
    """Wait until a worker has files of its run in its memory, and return their folder."""
    inherited = mapped(os.getpid())  # the worker is a fork of this process, which may have served other runs
    deadline = time.monotonic() + 600
    while not (folders := mapped(worker) - inherited):
        assert time.monotonic() < deadline, "the worker got no message"
        time.sleep(0.05)
    [folder] = folders
    return folder


def mapped(process: int) -> set[Path]:
    """Return the folders of messages of which a process has files in its memory."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[-1]).parent for line in lines if "/edelweiss-" in line}


def children(parent: int) -> list[int]:
    """Wait until a process has two children, and return them."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            if len(found) == 2:
                return [int(child) for child in found]
        time.sleep(0.05)
    raise AssertionError("the workers did not start")
