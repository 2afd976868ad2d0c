"""Hospitals, the coordinator and the SuperLink are killed or held up at random moments of a run: the same bits.

A SuperLink takes what was killed for alive for a minute, so each moment costs two: EDELWEISS_KILLS says how many.

    EDELWEISS_KILLS=30 make deployments PYTEST='-n 3 -k random_moment'  # about 40 minutes on two cores
"""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest
from safetensors.numpy import load_file

from edelweiss.common import Value, with_resumed
from edelweiss.config import RunConfig
from edelweiss.lab.submission import Outcome
from tests.deployment.host import HOSPITALS, Host, answered, wait_until
from tests.deployment.processes import PATIENCE, process_logs, untimed
from tests.server_app.sites import run_at, table, with_secret, write_table

MOMENTS = int(os.environ.get("EDELWEISS_KILLS", "0"))
HELD_UP = 90.0  # seconds; the SuperLink gives up after 60 what it does not hear of
ROUNDS = 25
TRIES = 4

pytestmark = pytest.mark.deployments

JOB: dict[str, Value] = {"algorithm": "codasca", "problem": "auc", "dataset": "site", "model": "mlp", "hidden": 8}
JOB |= {"sites": len(HOSPITALS), "rounds": ROUNDS, "local-steps": 30, "workers": 1, "device": "cpu"}
SECRET = "0badc0de" * 8


class Federation:
    """A coordinator and its hospitals, of which each may be killed, held up and started again."""

    def __init__(self, folder: Path, certificates: Path, stack: ExitStack) -> None:
        self.host, self.stack = Host(folder, certificates), stack
        self.processes: dict[str, Popen[str]] = {}
        for name in HOSPITALS:
            with_secret(name, folder / name / "data", self.host.folder(name, "/state"), SECRET)
        self.start("superlink", "serverapp")
        self.host.register(*HOSPITALS)
        self.start(*HOSPITALS)

    @property
    def results(self) -> Path:
        """The folder of the run."""
        return self.host.folder("serverapp", "/results") / "runs" / "it"

    def start(self, *services: str) -> None:
        """Start what does not run, as Docker does."""
        for name in services:
            if name not in self.processes or self.processes[name].poll() is not None:
                self.processes[name] = self.stack.enter_context(self.host.up(name))

    def submit(self) -> Outcome:
        """Submit the run, or let it go on if there is something to go on from."""
        job = JOB | {"run-name": "it"}
        if (self.results / "status.json").exists():
            job = with_resumed({"resume": str(self.results)})
        return self.host.submit(job)

    def has_answered(self, times: int) -> bool:
        """Whether a hospital has answered so many messages since it was started."""
        return answered(self.host, HOSPITALS[0]) >= times

    def pid(self, victim: str) -> int | None:
        """Whom to kill; a coordinator that has not said who it is cannot be."""
        if victim != "serverapp":
            return self.processes[victim].pid
        status = self.results / "status.json"
        return int(json.loads(status.read_text())["process"]) if status.exists() else None


Blow = tuple[str, signal.Signals, int, float]
"""Whom it hits, how, and after how many answers and seconds."""


def struck(folder: Path, certificates: Path, *blows: Blow) -> list[Outcome]:
    """Strike a run; return what who submitted it was told, each time, until it was complete.

    Asserts that the run came to what it comes to undisturbed.
    """
    for number, name in enumerate(HOSPITALS):
        write_table(folder / name / "data", *table(200, number))
    nodes = [with_secret(name, folder / name / "data", folder / f"quiet-{name}", SECRET) for name in HOSPITALS]
    quiet = run_at(RunConfig.parse(JOB | {"runs-dir": str(folder / "quiet")}), nodes).folder

    with ExitStack() as stack:
        federation = Federation(folder, certificates, stack)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        said: list[Outcome] = []
        for number, (victim, blow, answers, moment) in enumerate(blows):
            run = pool.submit(federation.submit)
            wait_until(run, partial(federation.has_answered, answers))
            time.sleep(moment)
            if pid := federation.pid(victim):
                with suppress(ProcessLookupError):  # the run was over before
                    os.kill(pid, blow)
                    if blow == signal.SIGSTOP:
                        time.sleep(HELD_UP)
                        os.kill(pid, signal.SIGCONT)
                    elif victim != "serverapp":  # of which only the run's own process was killed
                        federation.processes[victim].wait(timeout=PATIENCE)
                        federation.start(*federation.processes)
            said.append(outcome := run.result())
            assert number + 1 == len(blows) or not outcome.ok, outcome.log
        while not outcome.ok and len(said) < TRIES:
            assert outcome.why
            federation.start(*federation.processes)
            said.append(outcome := federation.submit())
        for process in federation.processes.values():
            process.terminate()
    about = f"{blows}: {[each.why for each in said[:-1]]}"
    print(about)
    assert outcome.ok, f"{about}\n{outcome.log}{process_logs(folder)}"
    assert untimed(federation.results) == untimed(quiet), about
    models = [load_file(place / "model.safetensors") for place in (federation.results, quiet)]
    assert all(np.array_equal(models[0][name], vector) for name, vector in models[1].items()), about
    return said


@pytest.mark.skipif(not MOMENTS, reason="takes minutes: EDELWEISS_KILLS says at how many random moments to kill")
@pytest.mark.parametrize("seed", range(MOMENTS))
def test_a_random_moment(seed: int, tmp_path: Path, certificates: Path) -> None:
    """Whoever it meets, the run ends by itself, or who submitted it is told so and it goes on: to the same bits."""
    random = np.random.default_rng(seed)
    victim = str(random.choice([*HOSPITALS, *["serverapp", "superlink"] * 2]))
    blow = signal.SIGSTOP if random.integers(2) else signal.SIGKILL
    answers, moment = int(random.integers(1, ROUNDS)), random.uniform(0, 0.5)  # so many, and so many seconds
    struck(tmp_path, certificates, (victim, blow, answers, moment))


def test_who_submitted_hears_of_the_end_though_the_coordinator_and_then_the_superlink_was_killed(
    tmp_path: Path, certificates: Path
) -> None:
    """The log ends with the SuperLink; the run goes on when that is back, or fails, says so, and is resumed."""
    coordinator, superlink = ("serverapp", signal.SIGKILL, 3, 0.0), ("superlink", signal.SIGKILL, 9, 0.1)
    lost, *_, outcome = struck(tmp_path, certificates, coordinator, superlink)
    assert "the run is lost" in lost.details
    assert "SIGKILL" in lost.details
    assert f"round {ROUNDS}/{ROUNDS}" in outcome.log
