#!/usr/bin/env python3
"""A coordinator and three hospitals on this machine, for a look: ``make demo``.

They have what docker-compose.yml gives them: certificates, keys, registered hospitals, a signed run. All of it is
processes that end with this one, and files in a temporary folder that goes with it. The third hospital asks its
operator: the run waits until somebody approves it, on its page or by a command. The hospitals have the heart disease
data of the UCI if EDELWEISS_DATA names a folder with them, else generated tables.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

# After the path, by which a script finds the repository.
from bin.run import KEPT, free_port, keeper  # noqa: E402
from edelweiss.common import Value, to_toml  # noqa: E402
from edelweiss.common.scratch import Scratch  # noqa: E402
from edelweiss.lab.submission import flower_environment, started  # noqa: E402

HEART = ("cleveland", "hungarian", "va")  # the fourth, Switzerland, has eight patients without the disease
GENERATED = ("hospital-a", "hospital-b", "hospital-c")
ROWS = 300  # of a generated table
START, END = 120.0, 5.0  # seconds for a process to say that it is there, and for all to end in peace
TAIL = 2000  # characters of a log
RUN = 'dataset="site" sites=3 algorithm="fedavg" problem="bce" model="linear" rounds=30 run-name="demo" runs-dir="{}"'
TOOLS = {"bash": "bash", "openssl": "openssl", "ssh-keygen": "openssh-client"}  # of bin/make_certs.sh, as in Debian


class DemoError(Exception):
    """What went wrong, in a line or as the log that says it."""


def main() -> int:
    """Start everything and wait for Ctrl-C, SIGTERM or a closed terminal, each of which ends all of it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if missing := [package for tool, package in TOOLS.items() if not shutil.which(tool)]:
        return complain(f"it makes keys and certificates: apt install {' '.join(missing)}")
    try:
        with Scratch() as home, keeper() as kept, ExitStack() as stack:
            demo = Demo(home, kept, stack)
            try:
                demo.begin()
                demo.watch()
            finally:
                demo.end()
    except KeyboardInterrupt:
        pass
    except (DemoError, OSError) as error:  # such as no temporary folder, or no room in it
        return complain(str(error))
    return 0


class Demo:
    """All processes, whose files are in the folder ``home``."""

    def __init__(self, home: Path, kept: int, stack: ExitStack) -> None:
        self.home, self._kept, self._stack = home, kept, stack
        self._processes: dict[str, subprocess.Popen[str]] = {}
        (home / "tmp").mkdir()
        keys = {"OPERATOR_CERTIFICATE": "operator.crt", "OPERATOR_KEY": "operator.key"}
        keys |= {"STUDY_KEYS": "study.pub", "EXECUTOR_KEY": "executor.key"}
        self._environment = flower_environment(home) | {"TMPDIR": str(home / "tmp"), "EDELWEISS_ALLOW_ROOT": "1"}
        self._environment |= {f"EDELWEISS_{name}": str(self.key(file)) for name, file in keys.items()}

    def key(self, name: str) -> Path:
        """Return the file of a key or certificate."""
        return self.home / "certificates" / name

    def begin(self) -> None:
        """Start all of it and say where it is."""
        hospitals, what = data_in(self.home)
        print(f"Starting a coordinator and three hospitals with {what}, in {self.home}", flush=True)
        self._keys(hospitals)
        control, fleet = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._coordinator(control, fleet)
        asks = hospitals[-1]
        for name in hospitals:
            self._hospital(name, fleet, asks=name == asks)
        there = [f"--superlink={control}", f"--root-certificates={self.key('ca.crt')}", f"--sites={self.key('public')}"]
        there += [f"--certificate={self.key('operator.crt')}", f"--key={self.key('operator.key')}"]
        there += [f"--study-key={self.key('study.key')}", f"--executor={self.key('executor.pub')}"]
        runs = self.home / "runs"
        own = [f"--runs-dir={runs}", f"--accounts={self.home / 'accounts.json'}", "--page=127.0.0.1:0"]
        self._start("dashboard", "edelweiss", "dashboard", *there, *own)
        for name in hospitals:
            self._says(name, "joined, as number")
        page = self._says(asks, "page: http")
        self._start("run", "edelweiss", "submit", *there, "--run-config", RUN.format(runs))
        print(
            f"\nThe coordinator's page  {self._says('dashboard', 'http')}\n"
            f"  {self._says('dashboard', 'user admin')}\n"
            f"The page of {asks}  {page.removeprefix('page: ')}\n"
            f"  {self._says(asks, 'name operator')}\n\n"
            f"Ctrl-C ends all of it. A run begins; {asks} asks its operator.\n",
            flush=True,
        )
        self._asks = asks

    def watch(self) -> None:
        """Say which runs wait and which processes end, for as long as this one goes on."""
        from edelweiss.client_app.policy.records import Records

        running, told, state = dict(self._processes), set[str](), self.home / self._asks / "state"
        command = Path(sysconfig.get_path("scripts")) / "edelweiss-site"
        while True:
            for run in (each.run for each in Records(str(state)).runs() if each.waits and each.run not in told):
                told.add(run)
                print(f"Run {run} waits for {self._asks}: approve it on its page, or in another shell:")
                print(f"  {command} approve {run} --state-dir {state}\n", flush=True)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                code = running.pop(name).returncode
                complete = name == "run" and code == 0
                how = (
                    "is complete: the coordinator's page has its report" if complete else f"has ended with code {code}"
                )
                print(f"The {name} {how}; its log: {self._log(name)}", flush=True)
            time.sleep(0.2)

    def end(self) -> None:
        """End everybody at once while there is a SuperLink to say goodbye to; what stays is killed with the block."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with suppress(OSError):  # a closed terminal
            print("\nEnding all of it", flush=True)
        others = [process for name, process in self._processes.items() if name not in ("superlink", "executor")]
        for process in others:
            process.terminate()
        deadline = time.monotonic() + END
        while any(process.poll() is None for process in others) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _keys(self, hospitals: Sequence[str]) -> None:
        """Make keys and certificates of all."""
        environment = self._environment | {"OUT": str(self.home / "certificates")}
        command = [str(REPO / "bin" / "make_certs.sh"), *hospitals]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise DemoError(done.stderr.strip())

    def _coordinator(self, control: str, fleet: str) -> None:
        """Start the SuperLink and the executor, and register the hospitals."""
        trusted, secret = self.key("ca.crt"), f"--superexec-auth-secret-file={self.key('superexec.secret')}"
        connection = {"default": "demo", "demo.address": control, "demo.root-certificates": str(trusted)}
        (self.home / "config.toml").write_text(
            to_toml({f"superlink.{key}": value for key, value in connection.items()})
        )
        host, _, port = control.partition(":")
        own = [f"--ssl-ca-certfile={trusted}", f"--ssl-certfile={self.key('superlink.crt')}", f"--host={host}"]
        own += [f"--ssl-keyfile={self.key('superlink.key')}", "--enable-supernode-auth", f"--port={port}", secret]
        own += ["--isolation=process", "--fleet-api-type=grpc-rere", f"--fleet-api-address={fleet}"]
        self._start("superlink", "edelweiss-superlink", *own)
        self._says("superlink", "Uvicorn running")
        address = f"--runtime-api-address={control}"
        self._start("executor", "edelweiss-executor", address, f"--root-certificates={trusted}", secret)
        for public in sorted(self.key("public").glob("*.pub")):
            self._start(f"register-{public.stem}", "edelweiss-flower", "supernode", "register", str(public))
        for name in [name for name in self._processes if name.startswith("register-")]:
            if self._processes.pop(name).wait(START):
                raise DemoError(self._log(name).read_text())

    def _hospital(self, name: str, fleet: str, *, asks: bool) -> None:
        """Start a hospital's site."""
        folder = self.home / name
        settings: dict[str, Value] = {"superlink": fleet, "site": name, "label": "outcome"}
        settings |= {f"{kind}-dir": str(folder / kind) for kind in ("data", "state")}
        settings |= {"root-certificates": str(self.key("ca.crt")), "key": str(self.key(f"{name}.key"))}
        settings |= {"certificate": str(self.key("public") / f"{name}.crt")}
        settings |= {"page": f"127.0.0.1:{free_port()}"} if asks else {}
        rules = f'[policy]\napprove = "{"ask" if asks else "always"}"\nstudy-keys = ["{self.key("study.pub")}"]\n'
        (folder / "site.toml").write_text(f"{to_toml(settings)}\n{rules}", encoding="utf-8")
        self._start(name, "edelweiss-site", "join", f"--policy={folder / 'site.toml'}")

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def _start(self, name: str, *command: str) -> None:
        stream = self._stack.enter_context(self._log(name).open("w"))
        options = {"stdin": self._kept, "stdout": stream, "stderr": stream}
        process = self._stack.enter_context(started([*KEPT, *command], self._environment, **options))
        self._processes[name] = process

    def _says(self, name: str, words: str) -> str:
        """Wait until a process has said these words; return its line from there on."""
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            ended = self._processes[name].poll() is not None
            said = self._log(name).read_text(encoding="utf-8", errors="replace")
            for line in said.splitlines():
                if words in line:
                    return line[line.index(words) :]
            if ended:
                break
            time.sleep(0.05)
        raise DemoError(f"{name} {'has ended' if ended else 'does not answer'}:\n{said[-TAIL:]}")


def data_in(folder: Path) -> tuple[tuple[str, ...], str]:
    """Write each hospital's table into its folder; return the hospitals' names and what their data are."""
    import numpy as np

    if os.environ.get("EDELWEISS_DATA"):
        from edelweiss.datasets.errors import DataError
        from edelweiss.datasets.files import SearchPath
        from edelweiss.datasets.sources.heart_disease import FEATURES, read

        try:
            source = read(SearchPath.of("", False))
        except DataError as error:
            print(f"generated tables, for EDELWEISS_DATA has no heart disease data: {error}", file=sys.stderr)
        else:
            for name in HEART:
                rows = source.groups == source.group_names.index(name)
                write(folder / name / "data", FEATURES, source.inputs[rows].numpy(), source.classes[rows])
            return HEART, "the UCI heart disease data"
    for number, name in enumerate(GENERATED):
        random = np.random.default_rng(number)
        age, pressure, cholesterol = random.normal((54, 132, 246), (9, 18, 52), (ROWS, 3)).round().T
        risk = (
            (age - 54) / 9 + 0.7 * (pressure - 132) / 18 + 0.4 * (cholesterol - 246) / 52 + random.logistic(size=ROWS)
        )
        table = np.stack([age, pressure, cholesterol], axis=1)
        write(folder / name / "data", ("age", "pressure", "cholesterol"), table, risk > 1.5)
    return GENERATED, "generated tables"


def write(folder: Path, features: Sequence[str], table: np.ndarray, labels: np.ndarray) -> None:
    """Write a hospital's data.csv; missing values are empty."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join([*features, "outcome"])]
    for row, label in zip(table, labels, strict=True):
        lines.append(",".join([*("" if value != value else f"{value:g}" for value in row), str(int(label))]))
    (folder / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def complain(text: str) -> int:
    """Say what is wrong; return the exit code."""
    print(f"demo: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
