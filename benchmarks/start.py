"""Seconds from a command until "started" is printed, and of what the processor's time until then is made.

    python -m benchmarks.start --repeats 5      # about 3 minutes on a machine with nothing else to do

The commands are `edelweiss` and `make run` with the default job, and beside them `import torch` alone; all
take turns. The processor's time is that of all processes that a command has started, looked up in /proc (Linux).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from benchmarks.engine import REPO

ROLES = {  # of the processes of `make run`, by their command lines
    "SuperLink": "flower-superlink",
    "SuperExec": "flower-superexec",
    "`flwr run`": "console_scripts",
    "clients (Ray's workers)": "default_worker|setup_worker|ray::(IDLE|ClientApp)",
    "Ray's own processes": "/ray/|ray::",
    "simulation: Flower, Ray's driver, the coordinator": "flwr-simulation",
}


class Watch:
    """The processor's time of all processes that have a mark in their environment, by command line."""

    def __init__(self, mark: str) -> None:
        self.mark = mark.encode()
        self.known: dict[Path, str] = {}
        self.seconds: dict[Path, float] = {}

    def look(self) -> None:
        """Look at every process; one may rename itself, and cover its environment by that."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if process not in self.known and self.mark not in (process / "environ").read_bytes():
                    continue
                self.known[process] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                self.seconds[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def by_role(self) -> dict[str, float]:
        """Return the seconds of each role, and of the rest."""
        found = dict.fromkeys([*ROLES, "rest"], 0.0)
        for process, line in self.known.items():
            role = next((role for role, pattern in ROLES.items() if re.search(pattern, line)), "rest")
            found[role] += self.seconds.get(process, 0.0)
        return found


def measured(command: list[str], until: str) -> tuple[float, dict[str, float]]:
    """Run a command to its end; return when it printed a text, and the processor's time until then by role."""
    mark = str(uuid.uuid4())
    watch, over = Watch(mark), Event()

    def keep_looking() -> None:
        while not over.wait(0.1):
            watch.look()

    began, looking = time.perf_counter(), Thread(target=keep_looking)
    environment = os.environ | {"EDELWEISS_MEASURED": mark}
    with subprocess.Popen(
        command, cwd=REPO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        looking.start()
        assert process.stdout is not None
        taken, roles = 0.0, watch.by_role()
        for line in process.stdout:
            if until in line and not taken:
                taken = time.perf_counter() - began
                watch.look()
                roles = watch.by_role()
        over.set()
    looking.join()
    if process.returncode or not taken:
        sys.exit(f"{' '.join(command)} did not get there (exit code {process.returncode})")
    return taken, roles


def main() -> None:
    """Measure and print two Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = f'rounds=1 runs-dir="{folder}"'
        commands = {
            "`import torch`": ([sys.executable, "-c", "import torch; print('there')"], "there"),
            "`edelweiss`": ([sys.executable, "-m", "edelweiss", "--run-config", job], "started after"),
            "`make run`": ([sys.executable, "bin/run.py", "--run-config", job], "started after"),
        }
        found = [{name: measured(*command) for name, command in commands.items()} for _ in range(options.repeats)]
    print("| | least, s | median, s | processor, least, s |\n| --- | ---: | ---: | ---: |")
    for name in commands:
        seconds = [repeat[name][0] for repeat in found]
        processor = min(sum(repeat[name][1].values()) for repeat in found)
        print(f"| {name} | {min(seconds):.2f} | {statistics.median(seconds):.2f} | {processor:.2f} |")
    print("\n| processes of `make run` until then | processor, least, s |\n| --- | ---: |")
    for role in [*ROLES, "rest"]:
        print(f"| {role} | {min(repeat['`make run`'][1][role] for repeat in found):.2f} |")


if __name__ == "__main__":
    main()
