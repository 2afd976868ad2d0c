"""This machine in the place of the containers of docker-compose.yml, for tests."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from edelweiss.common import Value, to_toml
from edelweiss.lab.submission import REPO, Outcome, flower_environment, started
from tests.deployment.processes import PATIENCE, UNDRAWN, process_logs

COMPOSE = REPO / "docker-compose.yml"
DEPLOYMENT = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = DEPLOYMENT["services"]
HOSPITALS = [name for name in SERVICES if name.startswith("hospital-")]
REGISTER = """
import sys
from edelweiss.server_app.control import flower
for key in sys.argv[1:]:
    sys.argv = ["flwr", "supernode", "register", key]
    try:
        flower()
    except SystemExit as end:
        if end.code:
            raise
"""


def make_certificates(folder: Path, *arguments: str) -> str:
    """Call bin/make_certs.sh and return what it says."""
    if missing := [tool for tool in ("bash", "openssl", "ssh-keygen") if not shutil.which(tool)]:
        pytest.skip(f"bin/make_certs.sh needs {', '.join(missing)}")
    command = [str(REPO / "bin" / "make_certs.sh"), *arguments]
    environment = os.environ | {"OUT": str(folder)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def wait_until(run: Future[Outcome], reached: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Wait while the run goes on; it must not end before."""
    deadline = time.monotonic() + timeout
    while not reached():
        assert not run.done(), run.result().log
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def answered(host: Host, hospital: str) -> int:
    """How many messages a hospital has answered since it was started."""
    return len(re.findall(r"run \d+: ", host.log(hospital)))


def node_id(host: Host, hospital: str) -> str | None:
    """What the SuperLink calls it; None before it is connected."""
    found = re.search(r"joined, as number (\d+)", host.log(hospital))
    return found[1] if found else None


_NEXT = itertools.count(os.getpid() * 101)  # processes of tests side by side begin at different ports


def quiet_ports() -> Iterator[int]:
    """Yield free ports that the kernel gives to no outgoing connection before a service listens there."""
    least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for number in _NEXT:
        port = 10_000 + number % (least - 10_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                yield port


def operations(heading: str) -> Iterator[list[str]]:
    """Yield the shell blocks of a section of docs/operations.md, as lines."""
    _, _, text = (REPO / "docs" / "operations.md").read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    for block in re.findall(r"^```sh\n(.*?)^```", text.partition("\n## ")[0], re.DOTALL | re.MULTILINE):
        yield block.splitlines()


class Host:
    """This machine in the place of the containers: their commands as processes, their paths as folders.

    Each service has its own folders and, for every port that it listens on, its own free port.
    """

    def __init__(self, root: Path, certificates: Path) -> None:
        self.root = root
        self._started: dict[str, int] = {}
        self.certificates = certificates
        wanted = [(name, port) for name in SERVICES for port in ("8000", "9092", "9099")]
        self.ports = dict(zip(wanted, map(str, quiet_ports()), strict=False))
        for name in SERVICES:
            for volume in SERVICES[name].get("volumes", []):
                self.mount(name, *volume.split(":")[:2])

    def mount(self, service: str, source: str, path: str) -> None:
        """Write a file of the repository as the service has it."""
        if (REPO / source).is_file():
            text = self.here(service, (REPO / source).read_text(encoding="utf-8"))
            (self.folder(service, str(Path(path).parent)) / Path(path).name).write_text(text, encoding="utf-8")

    def folder(self, service: str, path: str) -> Path:
        """Return where a container's folder is on this machine."""
        folder = self.root / service / path.strip("/").replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def here(self, service: str, text: str) -> str:
        """Replace addresses and paths of the container, in a word or a file, by those of this machine."""
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
        text = re.sub(r"\bsuperlink:(8000|9092)\b", lambda m: "127.0.0.1:" + self.ports["superlink", m[1]], text)
        text = re.sub(
            r"(0\.0\.0\.0:|127\.0\.0\.1'?:|--port=)(8000|9092|9099)\b",
            lambda m: m[1].replace("0.0.0.0", "127.0.0.1") + self.ports[service, m[2]],
            text,
        )
        text = (
            text.replace("unix:/page/page.sock", "127.0.0.1:0")
            .replace("0.0.0.0", "127.0.0.1")
            .replace("--host=control", "--host=127.0.0.1")
        )
        for secret in SERVICES[service].get("secrets", []):  # a path that the service does not mount stays, and fails
            source, name = (secret["source"], secret["target"]) if isinstance(secret, dict) else (secret, secret)
            file = self.certificates / Path(DEPLOYMENT["secrets"][source]["file"]).relative_to("certificates")
            text = re.sub(rf"/run/secrets/{name}\b(?!-)", str(file), text)
        text = re.sub(r"(?<![\w/])/public\b", f"{self.certificates}/public", text)
        text = text.replace("=/site.toml", f"={self.folder(service, '/') / 'site.toml'}")
        for path in ("/data", "/state"):
            text = re.sub(rf'(?<=["=]){path}(?=["/]|$)', lambda found: str(self.folder(service, found[0])), text)
        return text

    def environment(self, service: str) -> dict[str, str]:
        """Return the image's environment with the service's own on top."""
        own = {key: self.here(service, str(value)) for key, value in SERVICES[service].get("environment", {}).items()}
        return flower_environment(self.folder(service, own.pop("FLWR_HOME", "/tmp/flower"))) | own

    @contextmanager
    def up(self, service: str) -> Iterator[subprocess.Popen[str]]:
        """Run a service until its own health check passes, and then through the block."""
        command = [self.here(service, word) for word in SERVICES[service]["command"]]
        command[0] = sys.executable if command[0] == "python" else command[0]
        command = [*(word.replace("$$", "$") for word in SERVICES[service]["entrypoint"]), *command]
        where = REPO if "working_dir" in SERVICES[service] else self.folder(service, "/results")
        environment = self.environment(service)
        _, *check = (self.here(service, word) for word in SERVICES[service]["healthcheck"]["test"])
        check[0] = sys.executable
        with (
            (self.root / f"{service}.log").open("w") as log,
            started(command, environment, cwd=where, stdout=log, stderr=log) as process,
        ):
            deadline = time.monotonic() + PATIENCE
            while not (
                self.listens(service) and subprocess.run(check, env=environment, capture_output=True).returncode == 0
            ):
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"{service} is not healthy: {' '.join(command)}{process_logs(self.root)}")
                time.sleep(0.2)
            self._started[service] = process.pid
            yield process

    def federation(self, stack: ExitStack) -> dict[str, subprocess.Popen[str]]:
        """Run the coordinator's services and register the hospitals; return the processes of these."""
        stack.enter_context(self.up("superlink"))
        stack.enter_context(self.up("serverapp"))
        self.register(*HOSPITALS)
        with ThreadPoolExecutor(len(HOSPITALS)) as pool:
            ready = pool.map(lambda name: stack.enter_context(self.up(name)), HOSPITALS)
            return dict(zip(HOSPITALS, ready, strict=True))

    def register(self, *hospitals: str) -> None:
        """Register hospitals, `docker compose run --rm flower supernode register ...`: all of them by one process."""
        self._flower([sys.executable, "-c", REGISTER], *(f"/public/{name}.pub" for name in hospitals))

    def pid(self, service: str) -> int:
        """Return the process of a service that is up."""
        return self._started[service]

    def listens(self, service: str) -> bool:
        """Whether somebody answers at its health check's port: a check takes a second, and would be asked in vain."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(self.ports[service, "9099"]))) == 0

    def log(self, service: str) -> str:
        """Return what a service has said since it was last started."""
        return (self.root / f"{service}.log").read_text(encoding="utf-8", errors="replace")

    def flower(self, *arguments: str) -> str:
        """Run the coordinator's command line, `docker compose run --rm flower ...`; return what it says."""
        return self._flower(SERVICES["flower"]["entrypoint"], *arguments)

    def _flower(self, entrypoint: list[str], *arguments: str) -> str:
        command = [*entrypoint, *(self.here("flower", word) for word in arguments)]
        run = subprocess.run(command, env=self.environment("flower"), capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr + process_logs(self.root)
        return run.stdout

    def submit(self, run_config: Mapping[str, Value]) -> Outcome:
        """Submit a run: `docker compose run --rm submit ...`."""
        done = self.submitted(run_config)
        status = "finished:completed" if done.returncode == 0 else "finished:failed"
        return Outcome(status, done.stderr, done.stdout + done.stderr)

    def submitted(self, run_config: Mapping[str, Value]) -> subprocess.CompletedProcess[str]:
        """Submit a run; return what the command said, and its exit code."""
        settings = self.folder("submit", "/") / "run.toml"
        settings.write_text(to_toml(UNDRAWN | dict(run_config)), encoding="utf-8")
        command = [*(self.here("submit", word) for word in SERVICES["submit"]["entrypoint"]), str(settings)]
        return subprocess.run(command, env=self.environment("submit"), capture_output=True, text=True)
