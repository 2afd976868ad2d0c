"""What it takes to submit a run to a SuperLink with Flower's own command line (standard library only, and common/).

``flwr run --stream`` returns 0 also when the run failed, looks at every file below the app's folder before it bundles,
and writes into FLWR_HOME, which in a container may be read-only. Here the bundle is made of a copy, the home is a
temporary folder, and the caller learns how the run ended.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import edelweiss
from edelweiss.common import Value, flatten, read_overrides, to_toml, with_resumed

REPO = Path(__file__).resolve().parent.parent  # in a checkout the repository, in a wheel the package
PACKAGE = Path(edelweiss.__file__).resolve().parent
STOP_TIMEOUT = 5.0  # seconds to end in peace
GONE_TIMEOUT = 90.0  # seconds that a SuperLink may not answer: it may be started again
WRITE_TIMEOUT = 30.0  # seconds for a run that is stopped to write what it reached

FLOWER = "edelweiss-flower"  # `flwr`, with the operator's certificate
UNKNOWN = "unknown"
STARTED = re.compile(r"Successfully started run (\d+)")  # a line of `flwr run`

FLWR = """
import json, sys
from importlib.metadata import entry_points
from edelweiss.server_app.control import show_certificate
show_certificate()
flwr = next(iter(entry_points(group="console_scripts", name="flwr"))).load()
for line in sys.stdin:
    code = 0
    try:
        flwr(json.loads(line), prog_name="flwr")
    except SystemExit as end:
        code = end.code
    print(sys.argv[1], code, flush=True)
"""
"""The command ``flwr`` for each line of arguments; after it comes a line of a word that is given, and the exit code."""


def read_run_config(arguments: list[str]) -> dict[str, Value]:
    """Read ``--run-config`` values; those of a run that goes on are on top of its config.toml.

    Raises
    ------
    ConfigError
        When they cannot be read, or a key is unknown (Flower would only say "Invalid run configuration").
    """
    given = with_resumed(read_overrides(arguments))
    if given.keys() - flatten(app_table()["config"]).keys():
        from edelweiss.config import RunConfig  # slow to import, and it says which key was meant
        from edelweiss.config.plug_ins import load_named

        RunConfig.parse(load_named(given))  # a plug-in may declare it
    return given


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: str
    """Flower's words, such as "finished:completed" or "finished:failed"."""
    details: str
    """Why, in a line: the exception of the ServerApp."""
    log: str

    @property
    def ended(self) -> bool:
        """Whether the run is over, one way or another."""
        return self.status.startswith("finished")

    @property
    def ok(self) -> bool:
        """Whether it did what it was to do."""
        return self.status == "finished:completed"

    @property
    def code(self) -> int:
        """The exit code: 0 complete, 1 failed, 3 stopped, 4 lost or out of reach."""
        if self.ok:
            return 0
        reason = self.details.partition("exception: ")[2] or self.details
        if self.status == "finished:stopped" or reason.startswith("stopped:"):
            return 3
        gone = reason.startswith(("lost:", "No heartbeat"))  # the executor's words, or the SuperLink's after a minute
        return 4 if gone or (not self.ended and self.status != "refused") else 1

    @property
    def why(self) -> str:
        """Why it is not ok, in a line."""
        if not self.ended and self.status != "refused":
            return f"the run's final status is unavailable ({self.status}): {self.details or 'it goes on'}"
        reason = self.details.partition("exception: ")[2] or self.details
        if reason and reason in self.log:  # a mistake in the run-config, say: once is enough
            return f"the run {self.word}, see above"
        return f"the run {self.word}: {self.status}, {reason or 'without a reason'}"

    @property
    def word(self) -> str:
        """How it ended, in a word or two."""
        return {0: "is complete", 1: "failed", 3: "was stopped", 4: "is lost"}[self.code]


def submit(
    home: Path,
    environment: Mapping[str, str],
    run_config: Mapping[str, Value],
    *,
    federation_config: str = "",
    ready: Callable[[], None] = lambda: None,
    show: Callable[[str], None] = lambda line: None,
    stop: Callable[[str], None] | None = None,
    timeout: float | None = None,
) -> Outcome:
    """Run the app on the SuperLink of `home` to its end; when interrupted, `stop` it and show what it says to that.

    ``ready`` returns when the SuperLink answers: it may start meanwhile, for ``flwr`` takes seconds to import what it
    needs. ``stop`` is given Flower's number of the run.
    """
    settings = home / "run.toml"
    settings.write_text(to_toml(run_config), encoding="utf-8")
    command = ["run", str(home / "app"), "--stream", "--run-config", str(settings)]
    command += ["--federation-config", federation_config] if federation_config else []
    lines: list[str] = []

    def follow(said: Iterator[str]) -> None:
        for line in said:
            lines.append(line)
            show(line)

    with Flower(environment) as flower:
        stage(home / "app", run_config)
        ready()
        try:
            follow(flower(command, timeout))
            # `flwr run --stream` returns 0 for a failed run as well, so ask.
            if not (found := STARTED.search("".join(lines))):
                return Outcome("refused", "Flower did not start it, see above", "".join(lines))
            streamed, outcome = flower.ok, state_of(found[1], flower)
            if not (streamed and outcome.ended):  # the stream may have broken before the end
                if not outcome.ended:
                    show("the log ended before the run: waiting for that\n")
                    outcome = end_of(found[1], flower, timeout)
                known = set(lines)
                follow(line for line in flower(["log", found[1], "--show"]) if line not in known)
        except (KeyboardInterrupt, SystemExit):
            if stop and (found := STARTED.search("".join(lines))):
                print("stopping the run, which writes its state; interrupt again to kill it", file=sys.stderr)
                stop(found[1])
                follow(flower.rest(WRITE_TIMEOUT))
            raise
    return replace(outcome, log="".join(lines))


class Flower:
    """Flower's command line, in one process however many commands it is given: it takes seconds to import.

    The process starts with the block, or anew with the next command if it has ended, and ends with the block.

    Attributes
    ----------
    ok : bool
        Whether the last command has ended well.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment, self.ok = environment, False
        self._end = secrets.token_hex(16)  # no line of a run's log can be taken for the end

    def __enter__(self) -> Flower:
        command = [sys.executable, "-P", "-c", FLWR, self._end]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._held = ExitStack()
        self._process = self._held.enter_context(started(command, self.environment, **pipes, text=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def __call__(self, command: list[str], timeout: float | None = None) -> Iterator[str]:
        """Return the lines that a command prints, as they come; it is killed after ``timeout`` seconds."""
        if self._process.poll() is not None:
            self._held.close()
            self.__enter__()
        with suppress(BrokenPipeError):  # it may have ended, and says why
            print(json.dumps(command), file=self._process.stdin, flush=True)
        return self.rest(timeout)

    def rest(self, timeout: float | None = None) -> Iterator[str]:
        """Return the lines of the command that goes on."""
        self.ok = False
        watchdog = threading.Timer(timeout or threading.TIMEOUT_MAX, end_group, [self._process])
        watchdog.daemon = True
        watchdog.start()
        try:
            for line in self._process.stdout or ():
                text, end, code = line.partition(self._end)
                if text:
                    yield text
                if end:
                    self.ok = code == " 0\n"
                    return
        finally:
            watchdog.cancel()


def end_of(run: str, flower: Flower, timeout: float | None = None) -> Outcome:
    """Wait until a run has ended; of one whose ServerApp is gone a SuperLink says so after a minute.

    The outcome says that it has not ended if the SuperLink stays away, or after ``timeout`` seconds.
    """
    deadline = time.monotonic() + (timeout or threading.TIMEOUT_MAX)
    answered = time.monotonic()
    while not (outcome := state_of(run, flower)).ended and time.monotonic() < deadline:
        answered = answered if outcome.status == UNKNOWN else time.monotonic()
        if time.monotonic() - answered > GONE_TIMEOUT:
            break
        time.sleep(1)
    return outcome


def state_of(run: str, flower: Flower) -> Outcome:
    """Ask the SuperLink how a run stands."""
    said = "".join(flower(["list", "--run-id", run, "--format", "json"]))
    try:
        found = json.JSONDecoder().raw_decode(said, said.index("{"))[0]["runs"][0]
        return Outcome(found["status"], found["status-details"], "")
    except (ValueError, LookupError):
        if "Run ID not found" in said:
            return Outcome(UNKNOWN, "the SuperLink does not know it any more: its database was lost or put back", "")
        return Outcome(UNKNOWN, "the SuperLink does not answer, and the run may go on", "")


@contextmanager
def started(command: list[str], environment: Mapping[str, str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own; the whole group ends with the block, however the block ends."""
    # Never in the repository: Ray puts the start directory first on its workers' path, before the bundle.
    options = {"cwd": environment["FLWR_HOME"]} | options
    process = subprocess.Popen(command, env=environment, start_new_session=True, **options)
    try:
        yield process
    finally:
        end_group(process)


def end_group(process: subprocess.Popen[str]) -> None:
    """End a group leader and what it started: ask first, then insist."""
    deadline = time.monotonic() + STOP_TIMEOUT
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signum)
            while signum == signal.SIGTERM and time.monotonic() < deadline:
                process.poll()  # reaps the leader, else its zombie keeps the group alive
                os.killpg(process.pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            break
    process.wait()


def flower_environment(home: Path) -> dict[str, str]:
    """This process's environment, with Flower's and Ray's telemetry and updates off."""
    scripts = sysconfig.get_path("scripts")  # Flower starts its own commands by bare name
    return os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",  # the log as it comes, although it goes through a pipe
        "FLWR_HOME": str(home),
        # Else `uv sync` installs the dependencies anew for every run, gigabytes of them.
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # seconds: 1 as by default is waiting, 0.1 takes 7 % of a core
        # What `keep_freed_memory` does, for Flower's SuperLink: the memory of a large message serves the next.
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "MALLOC_TRIM_THRESHOLD_": str(2**30),
        "MALLOC_TOP_PAD_": str(2**26),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's coming default: a client that reserves no GPU may still see one. It also silences a warning.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray would start a worker a core and wait for them. Flower's need another environment, so none would be used.
        "RAY_prestart_worker_first_driver": "0",
    }


def stage(folder: Path, run_config: Mapping[str, Value] | None = None) -> Path:
    """Copy what the bundle will hold, and nothing else; each package is a folder of ``edelweiss/``, as in a wheel.

    Flower looks for the ClientApp in one thread while another imports the ServerApp. Folders that the package would
    first have to put on its path might not be found then. Options of a run's plug-ins become keys of the app: Flower
    refuses others.
    """
    project, app = (REPO / "pyproject.toml").read_text(encoding="utf-8"), app_table()
    known = flatten(app["config"])
    if own := {key: value for key, value in (run_config or {}).items() if key not in known}:
        project += "\n" + to_toml({f"tool.flwr.app.config.{key}": value for key, value in own.items()})
    for pattern in app["fab-include"]:
        if not pattern.startswith(f"{PACKAGE.name}/"):
            project = project.replace(f'"{pattern}"', f'"{PACKAGE.name}/{pattern}"')
            for source in REPO.glob(pattern):
                _copy(source, folder / PACKAGE.name / source.relative_to(REPO))
    for source in PACKAGE.glob("*.py"):
        _copy(source, folder / PACKAGE.name / source.name)
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    return folder


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def app_table() -> dict[str, Any]:
    """[tool.flwr.app] of pyproject.toml."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, Any] = project["tool"]["flwr"]["app"]
    return table
