"""Sites and the SuperLink are killed and held up at random moments of a run: the same bits, or a run that goes on.

A SuperLink takes a site that was killed for alive for a minute, so each kill costs one: EDELWEISS_KILLS says how many.

    EDELWEISS_KILLS=6 make test PYTEST='-p no:xdist tests/deployment/test_kills.py'
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from config import RunConfig
from keys import Value
from server_app.submission import submit, with_resumed
from tests.deployment.host import HOSPITALS, START_TIMEOUT, Host, answered, wait_until
from tests.deployment.processes import RUN_TIMEOUT, process_logs, untimed
from tests.server_app.sites import run_at, table, with_secret, write_table

KILLS = int(os.environ.get("EDELWEISS_KILLS", "0"))
HELD_UP = 90.0  # seconds; the SuperLink gives a site up after 60

pytestmark = pytest.mark.skipif(not KILLS, reason="takes minutes: EDELWEISS_KILLS says how many processes to kill")

JOB: dict[str, Value] = {"algorithm": "codasca", "problem": "auc", "dataset": "site", "model": "mlp", "hidden": 8}
JOB |= {"sites": len(HOSPITALS), "local-steps": 30, "workers": 1, "device": "cpu"}
SECRET = "0badc0de" * 8


def quiet_run(folder: Path, rounds: int) -> Path:
    """Run undisturbed, in the local engine; return the run folder."""
    for seed, name in enumerate(HOSPITALS):
        write_table(folder / name / "data", *table(200, seed))
    nodes = [with_secret(name, folder / name / "data", folder / f"quiet-{name}", SECRET) for name in HOSPITALS]
    return run_at(RunConfig.parse(JOB | {"rounds": rounds, "runs-dir": str(folder / "quiet")}), nodes).folder


def joined(host: Host, folder: Path, stack: ExitStack) -> None:
    """Start the coordinator and register the hospitals."""
    for name in HOSPITALS:
        with_secret(name, folder / name / "data", host.folder(name, "/state"), SECRET)
    stack.enter_context(host.up("superlink"))
    stack.enter_context(host.up("serverapp"))
    for name in HOSPITALS:
        host.flower("supernode", "register", f"/public/{name}.pub")


def assert_same(host: Host, quiet: Path) -> None:
    """Compare a run with the undisturbed one."""
    (folder,) = host.folder("serverapp", "/results").glob("runs/*")
    assert untimed(folder) == untimed(quiet)
    models = [load_file(place / "model.safetensors") for place in (folder, quiet)]
    assert all(np.array_equal(models[0][name], vector) for name, vector in models[1].items())


def test_sites(tmp_path: Path, certificates: Path) -> None:
    rounds = min(12 * KILLS, 200)  # as many as a site allows by default
    quiet, random = quiet_run(tmp_path, rounds), np.random.default_rng(KILLS)
    with ExitStack() as stack:
        host = Host(tmp_path, certificates)
        joined(host, tmp_path, stack)
        processes = {name: stack.enter_context(host.up(name)) for name in HOSPITALS}
        arguments = host.folder("flower", "/etc/flower"), host.environment("flower"), JOB | {"rounds": rounds}
        run = stack.enter_context(ThreadPoolExecutor(1)).submit(submit, *arguments, timeout=KILLS * RUN_TIMEOUT)
        for kill in range(KILLS):
            victim = HOSPITALS[int(random.integers(len(HOSPITALS)))]
            before = answered(host, victim)
            wait_until(run, lambda victim=victim, before=before: answered(host, victim) > before)  # type: ignore[misc]
            time.sleep(random.uniform(0, 2))
            if run.done():
                break
            if kill % 2:
                os.kill(processes[victim].pid, signal.SIGSTOP)
                time.sleep(HELD_UP)
                os.kill(processes[victim].pid, signal.SIGCONT)
            else:
                processes[victim].kill()
                processes[victim].wait(timeout=START_TIMEOUT)
                processes[victim] = stack.enter_context(host.up(victim))
        outcome = run.result()
        for process in processes.values():
            process.terminate()
    assert outcome.ok, f"{outcome.status}: {outcome.details}\n{outcome.log}{process_logs(tmp_path)}"
    assert_same(host, quiet)


def test_the_superlink(tmp_path: Path, certificates: Path) -> None:
    """With it the run ends, and says so; when it is back, sites join by themselves and the run goes on."""
    rounds = 20
    quiet = quiet_run(tmp_path, rounds)
    home = "/etc/flower"
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        host = Host(tmp_path, certificates)
        with ExitStack() as first:
            joined(host, tmp_path, first)
            processes = [stack.enter_context(host.up(name)) for name in HOSPITALS]
            job = JOB | {"rounds": rounds, "run-name": "it"}
            run = pool.submit(submit, host.folder("flower", home), host.environment("flower"), job, timeout=RUN_TIMEOUT)
            wait_until(run, lambda: answered(host, HOSPITALS[0]) > 5)
        # Both ended with the block, in the middle of a round.
        assert run.exception(timeout=RUN_TIMEOUT) or not run.result().ok
        folder = host.folder("serverapp", "/results") / "runs" / "it"
        stack.enter_context(host.up("superlink"))
        stack.enter_context(host.up("serverapp"))
        going_on = with_resumed({"resume": str(folder)})
        outcome = submit(host.folder("flower", home), host.environment("flower"), going_on, timeout=RUN_TIMEOUT)
        for process in processes:
            process.terminate()
    assert outcome.ok, f"{outcome.status}: {outcome.details}\n{outcome.log}{process_logs(tmp_path)}"
    assert_same(host, quiet)
