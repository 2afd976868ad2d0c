#!/usr/bin/env python3
"""Run one job in Flower's simulation engine and exit as the job did (standard library only, until something is wrong).

    python bin/run.py
    python bin/run.py --run-config 'algorithm="coda-plus" rounds=5'
    python bin/run.py --run-config experiments/codasca/mnist.toml --run-config 'seed=2'

`flwr run . --stream` starts the same job. This script adds what it leaves to its caller:

- A SuperLink of our own, on a free port, with a home of its own, that ends with the run. The one that
  `flwr run` starts stays behind, and the next project's run would land in it.
- The exit code: `flwr run --stream` returns 0 also when the run failed.
- A copy of the app's own files to bundle. Flower looks at every file below the app's folder first, and a
  virtual environment in `.venv` costs it seven seconds a run.
- An unknown run-config key is named. Flower says "Invalid run configuration." and no more.
- A TOML file and single keys together, which Flower refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

# The app is no installed package: its folder has to be on the path before anything of it is imported (E402).
from keys import ConfigError, Value, flatten, read_overrides, to_toml, with_resumed  # noqa: E402

START_TIMEOUT = 60.0  # seconds for the SuperLink to answer; it takes two
STOP_TIMEOUT = 5.0  # seconds to end in peace
WRITE_TIMEOUT = 30.0  # seconds for a run that is stopped to write what it reached

STARTED = re.compile(r"Successfully started run (\d+)")  # says `flwr run`


def main() -> int:
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every `finally` runs

    defaults = flatten(app_table()["config"])
    overrides: dict[str, Value] = {"runs-dir": str(REPO / "runs")}
    try:
        overrides |= with_resumed(read_overrides(args.run_config))
        if overrides.keys() - defaults.keys():
            from config import RunConfig  # slow to import, and it says which key was meant

            RunConfig.parse(overrides)
    except ConfigError as error:
        return complain(str(error))
    for key in overrides:  # the app runs elsewhere
        if is_path(key) and overrides[key]:
            overrides[key] = str(Path(str(overrides[key])).expanduser().absolute())
    supernodes = args.supernodes or {**defaults, **overrides}.get("sites") or 8

    with tempfile.TemporaryDirectory(prefix="edelweiss-") as folder:
        home = Path(folder)
        environment = flower_environment(home)
        with superlink(home, environment, "--simulation") as stop:
            federation = f"num-supernodes={supernodes} client-resources-num-cpus=1 {args.federation_config}"
            outcome = submit(
                home,
                environment,
                overrides,
                federation_config=federation,
                show=lambda line: print(line, end="", flush=True),
                stop=stop,
            )
    if outcome.ok:
        return 0
    reason = outcome.details.partition("exception: ")[2] or outcome.details
    shown = reason in outcome.log  # a mistake in the run-config, say: once is enough
    return complain("the run failed, see above" if shown else f"the run failed: {outcome.status}, {outcome.details}")


def is_path(key: str) -> bool:
    """Whether a run-config key names a file or a folder: that is what its last word is for, whoever declares it."""
    return key.replace(".", "-").rpartition("-")[2] in ("dir", "root", "file", "from", "pretrained", "resume")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run one job in Flower's simulation engine.")
    parser.add_argument(
        "--run-config",
        action="append",
        default=[],
        metavar="'KEY=VALUE ...' | FILE.toml",
        help="change keys of [tool.flwr.app.config] in pyproject.toml; may be repeated, later ones win",
    )
    parser.add_argument("--supernodes", type=int, help="simulated sites (default: run-config `sites`, else 8)")
    parser.add_argument(
        "--federation-config",
        default="",
        metavar="'KEY=VALUE ...'",
        help="more for Flower's simulation, such as 'client-resources-num-gpus=0.25'",
    )
    return parser.parse_args()


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: str
    """Flower's words, such as "finished:completed" or "finished:failed"."""
    details: str
    """Why, in a line: the exception of the ServerApp."""
    log: str

    @property
    def ok(self) -> bool:
        return self.status == "finished:completed"


def submit(
    home: Path,
    environment: Mapping[str, str],
    run_config: Mapping[str, Value],
    *,
    federation_config: str = "",
    show: Callable[[str], None] = lambda line: None,
    stop: Callable[[], None] | None = None,
    timeout: float | None = None,
) -> Outcome:
    """Run the app on the SuperLink of `home` to its end; when interrupted, `stop` it and show what it says to that."""
    settings = home / "run.toml"
    settings.write_text(to_toml(run_config), encoding="utf-8")
    command = ["flwr", "run", str(stage(home / "app")), "--stream", "--run-config", str(settings)]
    command += ["--federation-config", federation_config] if federation_config else []
    lines: list[str] = []

    def follow(timeout: float | None) -> None:
        with ends_after(timeout, flwr):
            for line in flwr.stdout or ():
                lines.append(line)
                show(line)

    with started(command, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as flwr:
        try:
            follow(timeout)
        except (KeyboardInterrupt, SystemExit):
            if stop and STARTED.search("".join(lines)):
                complain("stopping the run, it writes what it reached; once more, and it ends at once")
                stop()
                follow(WRITE_TIMEOUT)
            raise
    log = "".join(lines)
    if not (found := STARTED.search(log)):
        return Outcome("refused", "Flower did not start it, see above", log)
    # `flwr run --stream` returns 0 for a failed run too, so ask.
    listing = ["flwr", "list", "--run-id", found[1], "--format", "json"]
    answer = subprocess.run(listing, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    run = json.loads(answer.stdout)["runs"][0]
    return Outcome(run["status"], run["status-details"], log)


@contextmanager
def superlink(home: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[Callable[[], None]]:
    """Start a SuperLink, and the SuperExec that launches its ServerApps; end both with the block.

    `home`, the FLWR_HOME of `environment`, then names it as the connection that `flwr` uses. Yields a function that
    asks the ServerApps to end.
    """
    address = f"127.0.0.1:{free_port()}"
    # With `--isolation subprocess` the SuperLink would start the SuperExec, one after the other and in a
    # session of its own. Starting both here saves two seconds and leaves nothing that we do not hold.
    server_command = ["flower-superlink", "--insecure", "--isolation", "process", *arguments]
    server_command += ["--host", "127.0.0.1", "--port", address.rpartition(":")[2]]
    launcher_command = ["flower-superexec", "--insecure", "--runtime-api-address", address]
    launcher_command += ["--parent-pid", str(os.getpid())]  # its jobs, Ray included, end even if we are killed
    log_path = home / "superlink.log"
    with (
        log_path.open("w") as log,
        started(server_command, environment, stdout=log, stderr=log) as server,
        started(launcher_command, environment, stdout=log, stderr=log) as launcher,
    ):
        deadline = time.monotonic() + START_TIMEOUT
        while not healthy(f"http://{address}/health"):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{log_path.read_text()}\nthe SuperLink did not start, its log is above")
            time.sleep(0.1)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "own"\n[superlink.own]\naddress = "{address}"\ninsecure = true\n'
        )
        yield lambda: os.killpg(launcher.pid, signal.SIGINT)  # as Ctrl-C does; Ray's own processes block it
        server.terminate()  # so that both end at the same time


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


@contextmanager
def ends_after(timeout: float | None, process: subprocess.Popen[str]) -> Iterator[None]:
    """End the process if the block takes longer than this many seconds."""
    watchdog = threading.Timer(timeout or threading.TIMEOUT_MAX, end_group, [process])
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


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
    """This process's environment, with Flower and Ray told to keep to themselves."""
    scripts = sysconfig.get_path("scripts")  # Flower starts its own commands by bare name
    return os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",  # the log as it comes, although it goes through a pipe
        "FLWR_HOME": str(home),
        # Else `uv sync` installs the dependencies anew for every run, gigabytes of them.
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds; the default of 1 only adds waiting here
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's coming default: a client that reserves no GPU may still see one. Silences a warning, too.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def stage(folder: Path) -> Path:
    """Copy what the bundle will hold, and nothing else."""
    for pattern in ["pyproject.toml", *app_table()["fab-include"]]:
        for source in REPO.glob(pattern):
            target = folder / source.relative_to(REPO)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return folder


def app_table() -> dict[str, Any]:
    """[tool.flwr.app] of pyproject.toml."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, Any] = project["tool"]["flwr"]["app"]
    return table


def healthy(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def complain(*messages: str) -> int:
    for message in messages:
        print(f"run.py: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
