"""Worker processes: when there are any, what they need from the start, and what is said when one dies."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edelweiss.common import Value
from edelweiss.config import RunConfig
from edelweiss.federation import Oracle, RoundContext, RunError
from edelweiss.server_app import simulate
from edelweiss.server_app.local import LocalGrid, processes_pay
from edelweiss.server_app.pool import Pool
from edelweiss.server_app.script_guard import NAME, UNGUARDED
from edelweiss.strategies import ALGORITHMS
from edelweiss.strategies.local_sgda import LocalSGDA
from tests.said import has
from tests.server_app.sites import job, saddle_job

ROOT = Path(__file__).resolve().parents[2]


def python(source: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with the app on its path."""
    return subprocess.run(
        [sys.executable, *([source, *arguments] if source else arguments)],
        input=stdin,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )


# ---------------------------------------------------------------------- why one died


@dataclass(frozen=True, kw_only=True)
class Dying(LocalSGDA):
    """Local SGDA; in the second round a site's process ends."""

    name = "dying"
    how = staticmethod(lambda: None)

    def local_update(self, sent: dict, memory: dict, oracle: Oracle, context: RoundContext) -> tuple[dict, dict]:
        """Do it."""
        if context.round == 2:
            self.how()
        return super().local_update(sent, memory, oracle, context)


def crash() -> None:
    """Crash, without pytest's own report of it."""
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "exit code -9 (SIGKILL)",
        ),
        (crash, "exit code -11 (SIGSEGV)"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "exit code -15 (SIGTERM)"),
        (lambda: os.kill(os.getpid(), signal.SIGRTMIN + 1), f"exit code -{signal.SIGRTMIN + 1} (signal "),
        (lambda: os._exit(3), "exit code 3"),
    ],
    ids=["killed", "crashed", "ended", "unnamed", "left"],
)
def test_a_dead_worker_is_told_by_what_ended_it(
    tmp_path: Path, how: Callable[[], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, Dying.name, Dying)
    monkeypatch.setattr(Dying, "how", staticmethod(how))
    with pytest.raises(RunError, check=has(said, round=2)) as caught:
        simulate(saddle_job(tmp_path, algorithm="dying", workers=2))
    line = str(caught.value)
    # Each reason is said where it is the reason, and nowhere else.
    assert ("memory" in line) == ("SIGKILL" in said)
    assert ("crashed" in line) == ("SIGSEGV" in said)
    assert "__main__" not in line
    assert "above" not in line


def test_a_run_in_this_process_keeps_the_memory_of_large_tensors_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the command line does, which a script with one worker was 1.4 times slower than."""
    told: list[str] = []
    monkeypatch.setattr("edelweiss.common.memory.keep_freed_memory", lambda: told.append("kept"))
    simulate(saddle_job(tmp_path, workers=1))
    assert told


SCRIPT = """
from edelweiss.server_app import simulate
simulate({"problem": "saddle", "sites": 3, "rounds": 2, "workers": 2, "threads": 2, "runs-dir": RUNS}, quiet=False)
"""


@pytest.mark.deployments
def test_a_script_that_would_run_again_in_each_worker_is_told_of_its_guard(tmp_path: Path) -> None:
    script, runs = tmp_path / "script.py", tmp_path / "runs"
    script.write_text(SCRIPT.replace("RUNS", repr(str(runs))), encoding="utf-8")
    done = python(str(script))
    assert done.returncode == 1
    said = "RunError: round 1 of 2: each worker process imports the script that was started"
    assert said in done.stderr.splitlines()[-1]
    assert "if __name__ == '__main__'" in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1  # the script's own, none of a worker
    assert len(list(runs.iterdir())) == 1  # no worker began a run


def test_a_worker_that_is_still_being_started_begins_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def starting() -> None:
        multiprocessing.current_process()._inheriting = True  # type: ignore[attr-defined]  # as the import of main sees it
        simulate(saddle_job(tmp_path))

    worker = multiprocessing.get_context("fork").Process(target=starting, name=NAME)
    worker.start()
    worker.join()
    assert worker.exitcode == UNGUARDED
    assert not (tmp_path / "runs").exists()
    monkeypatch.setitem(ALGORITHMS, Dying.name, Dying)
    monkeypatch.setattr(Dying, "how", staticmethod(lambda: os._exit(UNGUARDED)))
    with pytest.raises(RunError, check=has("if __name__ == '__main__'", "workers = 1", key="workers")):
        simulate(saddle_job(tmp_path, algorithm="dying", workers=2))


@pytest.mark.deployments
def test_a_worker_that_cannot_start_points_to_its_traceback(tmp_path: Path) -> None:
    # There is no file that a worker could import.
    done = python("", "-", stdin=SCRIPT.replace("RUNS", repr(str(tmp_path / "runs"))))
    assert done.returncode == 1
    assert "its worker process ended with exit code 1: an exception, its traceback is above" in done.stderr
    assert done.stderr.index("FileNotFoundError") < done.stderr.index("its traceback is above")
    assert "__main__" not in done.stderr


# ---------------------------------------------------------------------- how many there are


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two cores; what is returned lists how many workers each pool was made of."""
    made: list[int] = []

    class Noting(Pool):
        def __init__(self, count: int, *rest: str) -> None:
            made.append(count)
            super().__init__(count, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("edelweiss.server_app.local.Pool", Noting)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return made


def test_a_job_that_takes_no_time_stays_in_one_process(tmp_path: Path, pools: list[int]) -> None:
    simulate(saddle_job(tmp_path, workers=0))
    assert pools == []
    simulate(saddle_job(tmp_path, workers=2))  # what is asked for is done
    assert pools == [2]


@pytest.mark.slow
def test_a_job_of_some_size_has_a_worker_for_each_core(tmp_path: Path, pools: list[int]) -> None:
    simulate(job(tmp_path, workers=0, rounds=2, local_steps=60))
    assert pools == [2]


def test_fresh_processes_have_to_pay_for_a_longer_start(tmp_path: Path) -> None:
    config = RunConfig.parse({})
    assert processes_pay(config, 2083, 2, "fork")
    assert not processes_pay(config, 2083, 2, "spawn")
    assert processes_pay(RunConfig.parse({"rounds": 1000}), 2083, 2, "spawn")


def test_a_message_has_to_be_worth_its_way_however_many_there_are(tmp_path: Path) -> None:
    keys = saddle_job(tmp_path, rounds=10**6, sites=1000)
    assert not processes_pay(RunConfig.parse(keys | {"local-steps": 1}), 5, 2, "fork")
    assert processes_pay(RunConfig.parse(keys | {"local-steps": 1000}), 5, 2, "fork")


counts = st.integers(1, 1000)


@pytest.mark.slow
@given(rounds=counts, sites=counts, steps=counts, batch=counts, d=st.integers(1, 10**8), workers=st.integers(2, 64))
def test_more_work_never_means_fewer_workers(
    rounds: int, sites: int, steps: int, batch: int, d: int, workers: int
) -> None:
    keys: dict[str, Value] = {"rounds": rounds, "sites": sites, "local-steps": steps, "batch-size": batch}
    keys |= {"problem": "saddle", "algorithm": "local-sgda"}
    if not processes_pay(RunConfig.parse(keys), d, workers, "fork"):
        return
    for key in ("rounds", "sites", "local-steps", "batch-size"):
        assert processes_pay(RunConfig.parse(keys | {key: int(keys[key]) * 2}), d, workers, "fork")
    assert processes_pay(RunConfig.parse(keys), 2 * d, workers, "fork")
    assert processes_pay(RunConfig.parse(keys), d, workers + 1, "fork")
    assert processes_pay(RunConfig.parse(keys | {"problem": "auc"}), d, workers, "fork")


# ---------------------------------------------------------------------- what a run imports

IMPORTED = """
import sys
from edelweiss import datasets

if __name__ == "__main__":
    print(*sorted({"sklearn", "torchvision", "pandas", "PIL"} & set(sys.modules)))
    from edelweiss.server_app import simulate
    keys = {"sites": 2, "rounds": 1, "hidden": 4, "partition": "iid", "workers": 1, "device": "cpu", "problem": "auc"}
    simulate(keys | {"runs-dir": sys.argv[1]})
    print(*sorted({"sklearn", "scipy", "pandas", "sympy"} & set(sys.modules)))
"""


@pytest.mark.deployments
def test_a_run_imports_no_library_that_takes_seconds_and_that_it_can_do_without(tmp_path: Path) -> None:
    done = python("", "-c", IMPORTED, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], "once the package of data sets is imported, or after a run"


def test_a_grid_without_messages_has_no_workers(tmp_path: Path) -> None:
    with LocalGrid(RunConfig.parse(saddle_job(tmp_path, workers=2)), 1) as grid:
        assert list(grid.push_messages([])) == []
        assert list(grid.pull_messages([])) == []
