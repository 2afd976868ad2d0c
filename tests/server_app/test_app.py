"""The app's end: how a mistake is logged in Flower's process, and what a run leaves that is told to stop."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flwr.supercore.exit.exit_handler import registered_exit_handlers, trigger_exit_handlers
from flwr.superlink.grid import http_grid

from edelweiss.federation import RunError
from edelweiss.lab.commands.submit import RESULTS
from edelweiss.server_app.app import PlainMistakes, carry_quickly, stoppable
from tests.server_app.command import command
from tests.server_app.sites import REPORT


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Flower's logger with the filter, for a test."""
    logger, plain = logging.getLogger("flwr"), PlainMistakes()
    logger.addFilter(plain)
    yield caplog
    logger.removeFilter(plain)


def fail(error: Exception) -> None:
    """Log an exception as Flower's processes do before they end."""
    logger = logging.getLogger("flwr")
    logger.error("%s raised an exception", "ServerApp", exc_info=error)
    logger.error("Exit Code: 201\nAn unhandled exception occurred in the ServerApp.")


def test_a_mistake_is_logged_in_its_own_words_and_no_more(said: pytest.LogCaptureFixture) -> None:
    fail(RunError("100 % of the sites are missing"))
    assert [record.getMessage() for record in said.records] == ["100 % of the sites are missing"]
    assert "Traceback" not in said.text


def test_a_crash_is_logged_as_one(said: pytest.LogCaptureFixture) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        fail(error)
    assert "Traceback" in said.text
    assert "ServerApp raised an exception" in said.text
    assert "Exit Code: 201" in said.text


# ---------------------------------------------------------------------- told to stop


@pytest.fixture
def no_exit_handlers() -> Iterator[None]:
    """Leave Flower's list of exit handlers as it was."""
    before = list(registered_exit_handlers)
    yield
    registered_exit_handlers[:] = before


def tell_to_stop() -> None:
    """Do what Flower's signal handler does before it starts to count the seconds."""
    trigger_exit_handlers(run_before_force_exit=True)


@pytest.mark.usefixtures("no_exit_handlers")
def test_in_a_simulation_the_thread_of_the_app_is_interrupted_and_waited_for() -> None:
    began, ends = threading.Event(), []

    def run() -> None:
        try:
            with stoppable():
                began.set()
                try:
                    while True:
                        time.sleep(0.01)
                finally:
                    time.sleep(0.3)  # as long as it takes to write what was reached
                    ends.append("written")
        except RunError as error:
            ends.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert began.wait(600)
    tell_to_stop()
    assert ends[0] == "written"  # before the process ends
    thread.join(600)
    assert ends == ["written", "stopped: before its end"]


@pytest.mark.usefixtures("no_exit_handlers")
def test_in_a_deployment_the_app_is_interrupted_where_it_is() -> None:
    before, passed = signal.signal(signal.SIGUSR1, lambda *_: tell_to_stop()), []

    def run() -> None:
        with stoppable():
            passed.append("begun")
            signal.raise_signal(signal.SIGUSR1)
            passed.append("gone on")

    try:
        with pytest.raises(RunError):
            run()
        assert passed == ["begun"]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("no_exit_handlers")
def test_after_a_run_there_is_nothing_to_interrupt() -> None:
    with stoppable():
        pass
    tell_to_stop()
    time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "workers", "fresh"),
    [
        (signal.SIGINT, 130, 1, False),
        pytest.param(signal.SIGINT, 130, 2, True, marks=pytest.mark.deployments),
        (signal.SIGINT, 130, 2, False),
        (signal.SIGTERM, 143, 1, False),
        (signal.SIGTERM, 143, 2, False),
    ],
)
def test_from_the_command_line(tmp_path: Path, number: signal.Signals, code: int, workers: int, fresh: bool) -> None:
    """A new interpreter (``fresh``) also writes the report, which takes longest."""
    job = f'problem="saddle" rounds=1000000 sites=3 workers={workers} device="cpu" run-name="cut"'
    job += f' runs-dir="{tmp_path}/runs" state-dir="{tmp_path}/state"'
    said = ""
    with command(job, fresh=fresh) as run:
        for line in run.stdout:
            if re.match("round +3/", line) and line not in said:
                os.killpg(run.pid, number)  # as Ctrl-C does it; a service manager, too
            said += line
        assert run.wait() == code
    folder = tmp_path / "runs" / "cut"
    [found] = RESULTS.findall(said)
    assert found == str(folder), "`submit` finds the folder by this line"
    assert said.splitlines()[-2:] == [
        f"stopped; results so far are in {folder}",
        f"continue with --run-config 'resume=\"{folder}\"'",
    ]
    acts = ["acts.jsonl"] if number == signal.SIGINT else []  # who has stopped it: somebody who is logged in
    assert {re.sub(r"\d+", "N", path.name) for path in folder.iterdir()} == {
        *acts,
        "config.toml",
        "memory-N.tar",
        "metrics.jsonl",
        "model.safetensors",
        *(REPORT if fresh else REPORT[:1]),
        "state.safetensors",
        "status.json",
    }
    rounds = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, len(rounds) + 1))
    assert set(map(int, re.findall("^round +([0-9]+)/", said, re.MULTILINE))) <= set(rounds)  # printed, so written
    assert len(rounds) >= 3
    # Codasca's sites remember their control variates, where the user wanted them.
    assert sorted(path.name for path in tmp_path.glob("state/run-*/*")) == [f"site-{k}.memory" for k in range(3)]


def test_a_grid_says_that_it_had_to_connect_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("push_objects", "pull_objects", "inflate_object_from_contents"):
        monkeypatch.setattr(http_grid, name, getattr(http_grid, name))  # as it was, when this test is over
    grid = http_grid.HttpGrid(insecure=True, token="none")
    carry_quickly(grid)
    monkeypatch.setattr(grid._retry_invoker, "wait_function", lambda seconds: None)
    failures = [httpx.ConnectError("the SuperLink is away")]

    def call() -> None:
        if failures:
            raise failures.pop()

    grid._retry_invoker.invoke(call)
    interrupted = vars(grid)["interrupted"]
    assert [interrupted(), interrupted()] == [True, False]
    grid._retry_invoker.invoke(call)
    assert not interrupted()
