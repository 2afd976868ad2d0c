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

import os
import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # until there is something to end

import argparse
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

# The app is no installed package: its folder has to be on the path before anything of it is imported (E402).
from edelweiss.common import ConfigError, Value, flatten, shown  # noqa: E402
from edelweiss.common.files import as_path, reason  # noqa: E402
from edelweiss.common.scratch import Scratch  # noqa: E402
from edelweiss.lab.submission import app_table, flower_environment, read_run_config, started, submit  # noqa: E402

START_TIMEOUT = 180.0  # seconds for the SuperLink to answer; it takes two

# Begins a command with the keeper as its input: it says its own number, so that it has no moment without a keeper.
KEPT = ["sh", "-c", 'echo $$ >&0; exec "$@" </dev/null', "kept"]


def main() -> int:
    heed_signals()
    args = parse_arguments()

    defaults = flatten(app_table()["config"])
    overrides: dict[str, Value] = {"runs-dir": str(REPO / "runs")}
    try:
        overrides |= read_run_config(args.run_config)
    except ConfigError as error:
        return complain(str(error))
    for key in overrides:  # the app runs elsewhere
        if is_path(key) and overrides[key]:
            try:
                overrides[key] = str(as_path(str(overrides[key])).absolute())
            except OSError as error:
                return complain(f"{key} = {shown(overrides[key])}: {reason(error)}")
    supernodes = args.supernodes or {**defaults, **overrides}.get("sites") or 8

    with Scratch() as home, ExitStack() as stack:
        environment = flower_environment(home)
        federation = f"num-supernodes={supernodes} client-resources-num-cpus=1 {args.federation_config}"
        stops: list[Callable[[], None]] = []
        outcome = submit(
            home,
            environment,
            overrides,
            federation_config=federation,
            ready=lambda: stops.append(stack.enter_context(superlink(home, environment, "--simulation"))),
            show=lambda line: print(line, end="", flush=True),
            stop=lambda _: stops[0](),
        )
    return 0 if outcome.ok else complain(outcome.why)


def heed_signals() -> None:
    """Let what asks this process to end raise an exception, so that every `finally` runs."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def again(dropped: sys.UnraisableHookArgs) -> None:
        """Raise it a moment later: Python only reports what is raised amid a finalizer, and goes on."""
        end = dropped.exc_value
        if not isinstance(end, (SystemExit, KeyboardInterrupt)):
            sys.__unraisablehook__(dropped)
            return

        def handler(*_: object) -> None:
            raise end

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    sys.unraisablehook = again


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
        keeper() as kept,
        started([*KEPT, *server_command], environment, stdin=kept, stdout=log, stderr=log) as server,
        started([*KEPT, *launcher_command], environment, stdin=kept, stdout=log, stderr=log) as launcher,
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


@contextmanager
def keeper() -> Iterator[int]:
    """Yield a file descriptor: process groups whose leader writes its number there do not survive this process.

    Not even where it is killed, or told to end in the middle of starting one: a shell reads until nobody can write.
    """
    command = ["sh", "-c", 'while read leader; do groups="$groups -$leader"; done; kill -9 $groups']
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=none, stderr=none, start_new_session=True) as shell:
        assert shell.stdin is not None
        with shell.stdin:
            yield shell.stdin.fileno()
            shell.kill()  # whoever comes here has ended them


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def healthy(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def complain(text: str) -> int:
    print(f"run.py: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
