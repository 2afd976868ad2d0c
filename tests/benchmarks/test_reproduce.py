"""The command: it runs what is missing, reads what is there, and can be stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import reproduce
from benchmarks.pages import write
from benchmarks.studies import REPO, STUDIES
from benchmarks.studies.when_auc_pays import NAME
from benchmarks.sweep import Sweep
from edelweiss.lab.compare.runs import OUTCOME
from edelweiss.lab.sweep import workers
from edelweiss.lab.sweep.workers import Workers, compute, stops
from tests import forks


def test_a_run_that_diverged_is_a_result(sweep: Sweep) -> None:
    job = sweep.tuning(sweep.study.methods[0])[0]
    settings = {**job.settings, "fedavg.lr": 1e30}
    assert compute(settings, sweep.folder / job.name) == ""
    outcome = sweep.outcome(replace(job, settings=settings))
    assert outcome is None or outcome.diverged  # under the name of other settings
    assert json.loads((sweep.folder / job.name / OUTCOME).read_text())["diverged"]


def test_a_run_that_cannot_be_done_says_why_and_is_no_result(sweep: Sweep) -> None:
    job = sweep.tuning(sweep.study.methods[0])[0]
    wrong = compute({**job.settings, "dataset": "heart-disease", "data-root": "/nowhere"}, sweep.folder / job.name)
    assert "heart" in wrong
    assert sweep.outcome(job) is None


@pytest.mark.slow
def test_a_sweep_runs_once_whatever_the_number_of_processes(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = multiprocessing.get_context("fork")  # which start at once, and this process has no threads
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forks)
    one_method = replace(sweep.study, methods=sweep.study.methods[:1], compare={})
    sweep = replace(sweep, study=one_method)
    reproduce.run(sweep, 2, "")
    text = write(sweep, tmp_path / "results")
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"small.csv", "small.md", "small.png"}
    assert (tmp_path / "results" / "small.png").stat().st_size < 200_000
    rows = (tmp_path / "results" / "small.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 + 2
    kept = {path: path.stat().st_mtime_ns for path in sweep.folder.glob(f"*/{OUTCOME}")}
    # One was cut off: it alone is run again.
    lost = min(kept)
    lost.unlink()
    reproduce.run(sweep, 1, "")
    again = {path: path.stat().st_mtime_ns for path in sweep.folder.glob(f"*/{OUTCOME}")}
    assert {path for path in kept if again[path] != kept[path]} == {lost}
    assert len(list(sweep.folder.iterdir())) == len(kept)
    one = replace(sweep, folder=tmp_path / "one")
    reproduce.run(one, 1, "")
    assert write(one, tmp_path / "other") == text
    assert (tmp_path / "other" / "small.csv").read_text().splitlines() == rows


@pytest.mark.slow
def test_ctrl_c_keeps_finished_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = in_shared_memory()
    command = ["saddle", "--jobs", "2", "--set", "rounds=40"]
    command += ["--runs-dir", str(tmp_path / "runs"), "--results-dir", str(tmp_path / "results")]
    with forks.started(lambda: sys.exit(reproduce.main(command)), REPO) as process:
        wait_until(lambda: len(list(tmp_path.glob(f"runs/saddle/*/{OUTCOME}"))) >= 2)
        finished, theirs = list(tmp_path.glob(f"runs/saddle/*/{OUTCOME}")), in_shared_memory() - before
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        code, _, errors = process.ended()
        wait_until(lambda: not alive(process.pid))
    assert code == 130
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("interrupted; finished runs are kept")
    assert all(path.exists() for path in finished)
    assert not (tmp_path / "results").exists()
    wait_until(lambda: not theirs & in_shared_memory())


@pytest.mark.slow
def test_a_sweep_that_was_stopped_leaves_no_thread_for_the_exit_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forks.FORK)

    def stopped() -> None:
        with Workers(1, "") as pool:
            running = pool._executor.submit(time.sleep, 600)
            wait_until(running.running)
            raise KeyboardInterrupt

    before = set(threading.enumerate())
    # So begins a spawned worker; a fork has the handler of another test's command, whose exception may get lost.
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        for _ in range(10):  # it is a matter of luck
            with pytest.raises(KeyboardInterrupt):
                stopped()
            assert set(threading.enumerate()) <= before
    finally:
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python says that it ignores it
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_that_a_finalizer_met_ends_a_sweep_all_the_same(
    number: signal.Signals, error: type[BaseException]
) -> None:
    class Collected:
        def __del__(self) -> None:
            signal.raise_signal(number)

    def handler(*_: object) -> None:
        raise error

    before = signal.signal(number, handler)
    try:
        with stops() as require_none:
            require_none()
            Collected()
            with pytest.raises(error):
                require_none()
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def deaf(begun: Path, ended: Path) -> None:
    """Work for a minute, and lose what says to stop."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    begun.touch()
    time.sleep(60)
    ended.touch()


def test_a_worker_that_loses_its_signals_does_not_keep_a_sweep_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forks.FORK)

    def interrupted() -> None:
        with Workers(1, "") as pool:
            pool._executor.submit(deaf, tmp_path / "begun", tmp_path / "ended")
            wait_until((tmp_path / "begun").exists)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (tmp_path / "ended").exists()
    assert not multiprocessing.active_children()


def wait_until(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def in_shared_memory() -> set[Path]:
    """Folders of runs in the local engine, anybody's."""
    return set(Path("/dev/shm").glob("edelweiss-*"))


def alive(group: int) -> set[int]:
    """Processes of a group that have not ended; one that nobody has asked about since is a zombie, and has."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has just ended
            continue
        if int(pgrp) == group and state != "Z":
            found.add(int(path.parent.name))
    return found


def test_published_tables_are_not_replaced_by_a_trial(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        reproduce.main(["saddle", "--set", "rounds=2"])
    assert stop.value.code == 2
    assert "--results-dir" in capsys.readouterr().err


def test_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*STUDIES, NAME]
