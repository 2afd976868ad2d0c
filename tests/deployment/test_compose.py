"""docker-compose.yml: it is valid, it is strict, and its own commands make a federation that trains, come what may."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from safetensors.numpy import load_file

from bin.run import free_port
from config import RunConfig
from keys import Value
from server_app.submission import REPO, Outcome, flower_environment, started, submit
from tests.deployment.processes import RUN_TIMEOUT, process_logs
from tests.server_app.sites import run_at

COMPOSE = REPO / "docker-compose.yml"
DEPLOYMENT = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = DEPLOYMENT["services"]
HOSPITALS = [name for name in SERVICES if name.startswith("hospital-")]
START_TIMEOUT = 60.0
ROUNDS = 2


def test_the_file_is_valid_compose() -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    check = subprocess.run(checker, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr
    assert "version" not in DEPLOYMENT


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_can_do_more_than_it_must(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "${EDELWEISS_USER:-1000:1000}"
    assert "--insecure" not in service["command"]
    assert name == "superlink" or "ports" not in service


@pytest.mark.parametrize("name", HOSPITALS)
def test_a_hospital_holds_its_own_key_and_only_reads_its_own_data(name: str) -> None:
    assert SERVICES[name]["secrets"] == ["ca", name]
    assert SERVICES[name]["volumes"] == [f"./data/{name}:/data:ro", f"{name}-state:/state"]
    assert f'--node-config=site="{name}" data-dir="/data" state-dir="/state"' in SERVICES[name]["command"]


def test_every_secret_is_one_that_make_certs_makes(certificates: Path) -> None:
    for name, secret in DEPLOYMENT["secrets"].items():
        made = certificates / Path(secret["file"]).name
        assert secret["file"] == f"certificates/{made.name}"
        assert made.is_file(), name
        assert made.suffix == ".crt" or made.stat().st_mode & 0o077 == 0, f"others can read {made.name}"


@pytest.mark.slow
def test_the_services_train_together_though_one_is_stopped_between_two_rounds(
    tmp_path: Path, certificates: Path
) -> None:
    """Its memory is on its disk, its key makes it the same hospital: the run ends with the numbers of a quiet one.

    The round after which it is stopped, the first, stays open while it is gone, because another hospital is held up.
    """
    run_config: dict[str, Value] = {"algorithm": "deprl", "problem": "auc", "dataset": "site", "model": "mlp"}
    run_config |= {"hidden": 8, "sites": len(HOSPITALS), "rounds": ROUNDS, "local-steps": 3}
    run_config |= {"workers": 1, "device": "cpu"}
    victim, other, *_ = HOSPITALS
    for seed, name in enumerate(HOSPITALS):
        write_table(tmp_path / name / "data" / "data.csv", seed)
    nodes = [{"site": name, "data-dir": str(tmp_path / name / "data")} for name in HOSPITALS]
    nodes = [node | {"state-dir": str(tmp_path / f"quiet-{node['site']}")} for node in nodes]
    quiet = run_at(RunConfig.parse(run_config | {"runs-dir": str(tmp_path / "quiet")}), nodes)

    with ExitStack() as stack:
        host = Host(tmp_path, certificates)
        stack.enter_context(host.up("superlink"))
        stack.enter_context(host.up("serverapp"))
        for name in HOSPITALS:
            host.flower("supernode", "register", f"/public/{name}.pub")
        processes = {name: stack.enter_context(host.up(name)) for name in HOSPITALS}

        arguments = host.folder("flower", "/etc/flower"), host.environment("flower"), run_config
        run = stack.enter_context(ThreadPoolExecutor(1)).submit(submit, *arguments, timeout=2 * RUN_TIMEOUT)
        [launcher] = [pid for pid in children(processes[other].pid) if "superexec" in command_line(pid)]
        wait_until(run, lambda: bool(children(launcher)))  # a process that says who it is, and the last for now
        os.kill(launcher, signal.SIGSTOP)
        try:
            wait_until(run, lambda: answered(host, victim) == received(host, other) == answered(host, other) + 1 == 2)
            # An answer that has not been fetched when its site goes offline counts as missing.
            wait_until(run, lambda: fetched(host) == sum(answered(host, name) for name in HOSPITALS))
            identity = node_id(host, victim)
            # After a SIGKILL the SuperLink would take it for alive, and refuse a second one, for a minute.
            processes[victim].terminate()
            processes[victim].wait(timeout=START_TIMEOUT)
            assert list(host.folder(victim, "/state").rglob("*.safetensors")), "it has something to lose"
            stack.enter_context(host.up(victim))
            wait_until(run, lambda: node_id(host, victim) is not None)
        finally:
            os.kill(launcher, signal.SIGCONT)
        outcome = run.result()

    assert outcome.ok, f"{outcome.status}: {outcome.details}\n{outcome.log}{process_logs(tmp_path)}"
    assert node_id(host, victim) == identity
    assert answered(host, victim) == ROUNDS, "the new process did the rest, and the last evaluation"
    (metrics,) = host.folder("serverapp", "/results").glob("runs/*/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert [untimed(line) for line in lines] == [untimed(record) for record in quiet.metrics]
    for name in HOSPITALS:
        files = [sorted(place.rglob("*.*")) for place in (host.folder(name, "/state"), tmp_path / f"quiet-{name}")]
        assert [len(found) for found in files] == [1, 1], "the model of its own, and no memory"
        for kept, expected in zip(*files, strict=True):
            models = load_file(kept), load_file(expected)
            assert all(np.array_equal(models[0][key], models[1][key]) for key in models[1])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What bin/make_certs.sh makes."""
    if missing := [tool for tool in ("bash", "openssl", "ssh-keygen") if not shutil.which(tool)]:
        pytest.skip(f"bin/make_certs.sh needs {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run([str(REPO / "bin" / "make_certs.sh")], env=os.environ | {"OUT": str(folder)}, check=True)
    return folder


def write_table(path: Path, seed: int) -> None:
    """Write 200 patients of two classes, a quarter of them positive."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(200) < 0.25).astype(int)
    features = rng.normal(loc=labels[:, None], size=(200, 4))
    path.parent.mkdir(parents=True)
    pd.DataFrame(features, columns=["age", "pressure", "marker", "dose"]).assign(label=labels).to_csv(path, index=False)


def wait_until(run: Future[Outcome], reached: Callable[[], bool]) -> None:
    """Wait while the run goes on; it must not end before."""
    deadline = time.monotonic() + RUN_TIMEOUT
    while not reached():
        assert not run.done(), run.result().log
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def received(host: Host, hospital: str) -> int:
    """How many messages a SuperNode has received since it was started."""
    return host.log(hospital).count("Receiving: ")


def answered(host: Host, hospital: str) -> int:
    """How many it has answered."""
    return host.log(hospital).count("Sent successfully")


def fetched(host: Host) -> int:
    """How many answers the coordinator has fetched from the SuperLink."""
    return host.log("superlink").count("confirm-message-received")


def node_id(host: Host, hospital: str) -> str | None:
    """What the SuperLink calls it; None before it is connected."""
    found = re.search(r"SuperNode ID: (\d+)", host.log(hospital))
    return found[1] if found else None


def children(parent: int) -> list[int]:
    """Processes that a process has started, from the process table."""
    pids = [int(place.name) for place in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if parent_of(pid) == parent]


def parent_of(pid: int) -> int | None:
    """Return who started a process; None when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def command_line(pid: int) -> str:
    """What a process was started with."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def untimed(record: dict[str, Any]) -> dict[str, Any]:
    """A round's line without what differs from run to run, as JSON has it."""
    return json.loads(json.dumps({key: value for key, value in record.items() if "seconds" not in key}))  # type: ignore[no-any-return]


class Host:
    """This machine in the place of the containers: their commands as processes, their paths as folders.

    Each service has its own folders and, for every port that it listens on, its own free port.
    """

    def __init__(self, root: Path, certificates: Path) -> None:
        self.root = root
        self.certificates = certificates
        self.ports = {(name, port): str(free_port()) for name in SERVICES for port in ("8000", "9092", "9094", "9099")}
        client = REPO / "bin" / "superlink.toml"
        self.folder("flower", "/etc/flower").joinpath("config.toml").write_text(
            self.here("flower", client.read_text(encoding="utf-8"))
        )

    def folder(self, service: str, path: str) -> Path:
        """Return where a container's folder is on this machine."""
        folder = self.root / service / path.strip("/").replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def here(self, service: str, text: str) -> str:
        """Replace addresses and paths of the container by those of this machine."""
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
        text = re.sub(r"\bsuperlink:(8000|9092)\b", lambda m: "127.0.0.1:" + self.ports["superlink", m[1]], text)
        text = re.sub(
            r"(0\.0\.0\.0:|127\.0\.0\.1'?:|--port=)(8000|9092|9094|9099)\b",
            lambda m: m[1].replace("0.0.0.0", "127.0.0.1") + self.ports[service, m[2]],
            text,
        )
        text = text.replace("0.0.0.0", "127.0.0.1")
        for name, secret in DEPLOYMENT["secrets"].items():
            if name in SERVICES[service]["secrets"]:  # a path that the service does not mount stays, and fails
                text = re.sub(rf"/run/secrets/{name}\b(?!-)", str(self.certificates / Path(secret["file"]).name), text)
        text = text.replace("/public/", f"{self.certificates}/public/")
        for volume in SERVICES[service].get("volumes", []):
            path = volume.split(":")[1]
            text = re.sub(rf'(?<=["=]){path}(?=["/]|$)', str(self.folder(service, path)), text)
        return text

    def environment(self, service: str) -> dict[str, str]:
        """Return the image's environment with the service's own on top."""
        own = {key: str(value) for key, value in SERVICES[service].get("environment", {}).items()}
        return flower_environment(self.folder(service, own.pop("FLWR_HOME", "/tmp/flower"))) | own

    @contextmanager
    def up(self, service: str) -> Iterator[subprocess.Popen[str]]:
        """Run a service until its own health check passes, and then through the block."""
        command = [self.here(service, word) for word in SERVICES[service]["command"]]
        environment = self.environment(service)
        _, *check = (self.here(service, word) for word in SERVICES[service]["healthcheck"]["test"])
        check[0] = sys.executable
        with (
            (self.root / f"{service}.log").open("w") as log,
            started(command, environment, cwd=self.folder(service, "/results"), stdout=log, stderr=log) as process,
        ):
            deadline = time.monotonic() + START_TIMEOUT
            while not (
                self.listens(service) and subprocess.run(check, env=environment, capture_output=True).returncode == 0
            ):
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"{service} is not healthy: {' '.join(command)}{process_logs(self.root)}")
                time.sleep(0.2)
            yield process

    def listens(self, service: str) -> bool:
        """Whether somebody answers at its health check's port: a check takes a second, and would be asked in vain."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(self.ports[service, "9099"]))) == 0

    def log(self, service: str) -> str:
        """Return what a service has said since it was last started."""
        return (self.root / f"{service}.log").read_text(encoding="utf-8", errors="replace")

    def flower(self, *arguments: str) -> None:
        """Run the coordinator's command line: `docker compose run --rm flower ...`."""
        command = [*SERVICES["flower"]["entrypoint"], *(self.here("flower", word) for word in arguments)]
        run = subprocess.run(command, env=self.environment("flower"), capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr + process_logs(self.root)
