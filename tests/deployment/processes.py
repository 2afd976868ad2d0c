"""Real Flower processes on this machine, for tests: a deployment of a SuperLink and sites, and the simulation.

    with deployment(folder, [{"site": "a", "data-dir": "..."}, {"site": "b", "data-dir": "..."}]) as federation:
        outcome = edelweiss.federation.submit({"rounds": 2})
        assert outcome.ok, outcome.log

Ports are free ones of the loopback interface, every FLWR_HOME is inside `folder`, and every process ends with
the block. A deployment is ready after about five seconds here, a simulated run takes about fifteen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bin.run import free_port, superlink
from edelweiss.common import Value, to_toml
from edelweiss.common.overrides import toml_value
from edelweiss.lab.submission import REPO, Outcome, flower_environment, started, submit

PATIENCE = 600.0  # seconds that a step, or a run, may take: tests and CI share a processor
UNDRAWN: dict[str, Value] = {"report": False}  # of runs that say nothing else: pictures cost seconds of each
LOG_TAIL = 6000  # characters of each process's log that a failed run shows


@dataclass(frozen=True)
class Federation:
    """A running SuperLink with its sites."""

    home: Path
    environment: Mapping[str, str]
    sites: Sequence[subprocess.Popen[str]] = ()

    def submit(self, run_config: Mapping[str, Value], timeout: float = PATIENCE) -> Outcome:
        """Run one job to its end; the log of a run that failed holds the processes' own logs as well."""
        outcome = submit(self.home, self.environment, UNDRAWN | dict(run_config), timeout=timeout)
        return outcome if outcome.ok else replace(outcome, log=outcome.log + process_logs(self.home))


@dataclass(frozen=True)
class Guarded:
    """A running SuperLink with TLS: its folder, with ``certificates`` and those of ``others``, and its ports."""

    folder: Path
    fleet: int
    control: int


def until(reached: Callable[[], bool], shown: Callable[[], str] = str, patience: float = PATIENCE) -> None:
    """Wait until something is so; asking takes at most a twentieth of a processor: a browser answers dearly."""
    deadline = time.monotonic() + patience
    began = time.monotonic()
    while not reached():
        assert time.monotonic() < deadline, shown()
        time.sleep(max(0.05, min(2.0, 19 * (time.monotonic() - began))))
        began = time.monotonic()


@contextmanager
def deployment(
    folder: Path,
    node_configs: Sequence[Mapping[str, Value]],
    *,
    supernodes: Collection[int] = (),
    installed: Sequence[Path] = (),
) -> Iterator[Federation]:
    """Start a SuperLink and a site for each node-config: our own process, but of these numbers Flower's SuperNode.

    ``installed`` are folders with packages for Python's path: the coordinator's, and each site's.
    """
    paths = [f"{place}{os.pathsep}{os.environ.get('PYTHONPATH', '')}" for place in installed]
    environments = [flower_environment(folder) | {"PYTHONPATH": path} for path in paths]
    environment, *others = environments or [flower_environment(folder)] * (len(node_configs) + 1)
    fleet = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        # The SuperNodes start beside the SuperLink and try until it answers.
        nodes = []
        for number, node_config in enumerate(node_configs):
            home = folder / f"site-{number}"  # of its own: a SuperNode unpacks the app below it
            home.mkdir()
            log = stack.enter_context((folder / f"site-{number}.log").open("w"))
            command, where = (
                [sys.executable, "-m", "edelweiss.client_app.cli", "join", "--insecure", "--superlink", fleet],
                REPO,
            )
            command += [f"--{key}={value}" for key, value in node_config.items()]
            if number in supernodes:
                command, where = ["flower-supernode", "--insecure", "--grpc-rere", "--superlink", fleet], home
                command += ["--host", "127.0.0.1", "--port", str(free_port())]
                command += ["--node-config", " ".join(f"{k}={toml_value(v)}" for k, v in node_config.items())]
            own = {"EDELWEISS_ALLOW_ROOT": "1"} | others[number] | {"FLWR_HOME": str(home)}
            nodes.append(stack.enter_context(started(command, own, cwd=where, stdout=log, stderr=log)))
        arguments = ["--fleet-api-type", "grpc-rere", "--fleet-api-address", fleet]
        stack.enter_context(superlink(folder, environment, *arguments))
        yield Federation(folder, environment, nodes)
        for node in nodes:  # all at once, while there is a SuperLink to say goodbye to: else each waits for it
            node.terminate()


def followed(
    command: list[str], folder: Path, rounds: int, then: Callable[[int], None] = lambda pid: None
) -> tuple[int, str]:
    """Run a command in a session of its own; after so many rounds call ``then`` with its pid.

    The run folder tells of them: what a run says reaches us later, on a busy machine when it is over. Returns the exit
    code and all that the command said.
    """
    lines = folder / "metrics.jsonl"
    with tempfile.TemporaryFile("w+") as said:
        whole: dict[str, Any] = {"cwd": REPO, "stdout": said, "stderr": said, "start_new_session": True}
        with subprocess.Popen(command, **whole) as process:
            until(
                lambda: process.poll() is not None or (lines.read_text().count("\n") if lines.exists() else 0) >= rounds
            )
            then(process.pid)
            code = process.wait(timeout=PATIENCE)
        said.seek(0)
        return code, said.read()


def simulate(folder: Path, run_config: Mapping[str, Value], supernodes: int, timeout: float = PATIENCE) -> Outcome:
    """Run one job in Flower's simulation as `make run` does, through bin/run.py."""
    settings = folder / "simulate.toml"
    settings.write_text(to_toml(UNDRAWN | dict(run_config)), encoding="utf-8")
    command = [sys.executable, str(REPO / "bin" / "run.py"), "--supernodes", str(supernodes)]
    command += ["--run-config", str(settings)]
    try:
        run = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, env=os.environ
        )
    except subprocess.TimeoutExpired as expired:
        return Outcome("timeout", f"not done after {timeout} s", str(expired.stdout))
    status = "finished:completed" if run.returncode == 0 else "finished:failed"
    return Outcome(status, "" if run.returncode == 0 else run.stdout.strip().splitlines()[-1], run.stdout)


def answers(*command_lines: Sequence[str]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of ``edelweiss-site`` for each of these, from one interpreter.

    Of its own, because it changes how a process logs; one, because it takes seconds to import everything.
    """
    words = [sys.executable, "-c", CALLS, json.dumps([[*map(str, line)] for line in command_lines])]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


CALLS = """
import contextlib, io, json, sys
from edelweiss.client_app.cli import main
found = []
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(line)
        except SystemExit as end:
            code = end.code
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""


def process_logs(folder: Path) -> str:
    """The end of every process's log, to show when something failed."""
    return "".join(
        f"\n--- {path.name} ---\n{path.read_text(errors='replace')[-LOG_TAIL:]}"
        for path in sorted(folder.glob("*.log"))
    )


def untimed(folder: Path) -> list[dict[str, Any]]:
    """The rounds of a run folder, without what differs from run to run."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if "seconds" not in key} for line in lines]
