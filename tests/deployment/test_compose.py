"""docker-compose.yml: it is valid, it is strict, and its own commands make a federation that trains, come what may."""

from __future__ import annotations

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
import pytest
import yaml
from safetensors.numpy import load_file

from bin.run import free_port
from client_app.audit import Audit
from config import RunConfig
from keys import Value
from server_app.submission import REPO, Outcome, flower_environment, started, submit
from tests.deployment.processes import RUN_TIMEOUT, process_logs, untimed
from tests.server_app.sites import run_at, table, with_secret, write_table

COMPOSE = REPO / "docker-compose.yml"
DEPLOYMENT = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = DEPLOYMENT["services"]
HOSPITALS = [name for name in SERVICES if name.startswith("hospital-")]
START_TIMEOUT = 60.0
SECRET = "0badc0de" * 8
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
    assert SERVICES[name]["secrets"] == ["ca", {"source": name, "target": "key"}]
    volumes = ["./site.toml:/site.toml:ro", f"./data/{name}:/data:ro", f"{name}-state:/state"]
    assert SERVICES[name]["volumes"] == volumes
    assert f"--site={name}" in SERVICES[name]["command"]


@pytest.mark.parametrize("name", HOSPITALS)
def test_a_hospital_shares_a_network_with_the_superlink_only(name: str) -> None:
    """On one machine it is shut in; on a machine of its own, INTERNAL=false lets it out."""
    [network] = SERVICES[name]["networks"]
    assert [other for other in SERVICES if network in SERVICES[other]["networks"]] == ["superlink", name]
    assert DEPLOYMENT["networks"][network]["internal"] == "${INTERNAL:-true}"


def test_jobs_are_taken_in_the_coordinators_own_network_only() -> None:
    networks = SERVICES["superlink"]["networks"]
    assert "--host=control" in SERVICES["superlink"]["command"]
    assert [name for name in networks if "control" in networks[name].get("aliases", [])] == ["control"]
    assert DEPLOYMENT["networks"]["control"] == {"internal": True}


def test_every_secret_is_one_that_make_certs_makes(certificates: Path) -> None:
    for name, secret in DEPLOYMENT["secrets"].items():
        made = certificates / Path(secret["file"]).name
        assert secret["file"] == f"certificates/{made.name}"
        assert made.is_file(), name
        assert made.suffix == ".crt" or made.stat().st_mode & 0o077 == 0, f"others can read {made.name}"


def test_the_certificate_is_signed_again_for_a_new_host_by_the_same_authority(tmp_path: Path) -> None:
    """Nothing else changes, names that it has are kept, and without the authority's key the script says so."""
    assert "superlink.crt is for" in make_certificates(tmp_path)
    assert "superlink.crt is for" not in make_certificates(tmp_path), "what exists is kept"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    for host, name in (("coordinator.example.org", "DNS:coordinator.example.org"), ("192.0.2.7", "IP:192.0.2.7")):
        assert name in make_certificates(tmp_path, "--host", host).partition("\n")[0]
    verify = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", "coordinator.example.org"]
    verify += ["-verify_ip", "192.0.2.7", "superlink.crt"]
    assert subprocess.run(verify, cwd=tmp_path, capture_output=True).returncode == 0
    changed = [path.name for path, content in before.items() if path.read_bytes() != content]
    assert sorted(changed) == ["ca.srl", "superlink.crt"]

    (tmp_path / "ca.key").unlink()  # the coordinator keeps it elsewhere
    make_certificates(tmp_path, "--host", "coordinator.example.org", "hospital-d")
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        make_certificates(tmp_path, "--host", "another.example.org")
    assert "bring ca.key back" in refusal.value.stderr


@pytest.mark.slow
def test_the_services_train_together_though_one_is_stopped_between_two_rounds(
    tmp_path: Path, certificates: Path
) -> None:
    """Its memory is on its disk, its key makes it the same hospital: the run ends with the numbers of a quiet one.

    The round after which it is stopped stays open while it is gone, because another hospital is held up.
    """
    run_config: dict[str, Value] = {"algorithm": "deprl", "problem": "auc", "dataset": "site", "model": "mlp"}
    run_config |= {"hidden": 8, "sites": len(HOSPITALS), "rounds": ROUNDS, "local-steps": 3}
    run_config |= {"workers": 1, "device": "cpu"}
    victim, other, *_ = HOSPITALS
    for seed, name in enumerate(HOSPITALS):
        write_table(tmp_path / name / "data", *table(200, seed))
    nodes = [with_secret(name, tmp_path / name / "data", tmp_path / f"quiet-{name}", SECRET) for name in HOSPITALS]
    quiet = run_at(RunConfig.parse(run_config | {"runs-dir": str(tmp_path / "quiet")}), nodes)

    with ExitStack() as stack:
        host = Host(tmp_path, certificates)
        for name in HOSPITALS:
            with_secret(name, tmp_path / name / "data", host.folder(name, "/state"), SECRET)
        stack.enter_context(host.up("superlink"))
        stack.enter_context(host.up("serverapp"))
        for name in HOSPITALS:
            host.flower("supernode", "register", f"/public/{name}.pub")
        processes = {name: stack.enter_context(host.up(name)) for name in HOSPITALS}

        arguments = host.folder("flower", "/etc/flower"), host.environment("flower"), run_config
        run = stack.enter_context(ThreadPoolExecutor(1)).submit(submit, *arguments, timeout=2 * RUN_TIMEOUT)
        wait_until(run, lambda: answered(host, other) > 0)
        os.kill(processes[other].pid, signal.SIGSTOP)
        try:
            wait_until(run, lambda: answered(host, victim) == answered(host, other) + 1)
            # An answer that has not been fetched when its site goes offline counts as missing.
            wait_until(run, lambda: fetched(host) == sum(answered(host, name) for name in HOSPITALS))
            before, identity = answered(host, victim), node_id(host, victim)
            # After a SIGKILL the SuperLink would take it for alive, and refuse a second one, for a minute.
            processes[victim].terminate()
            processes[victim].wait(timeout=START_TIMEOUT)
            assert list(host.folder(victim, "/state").rglob("*.safetensors")), "it has something to lose"
            processes[victim] = stack.enter_context(host.up(victim))
            wait_until(run, lambda: node_id(host, victim) is not None)
        finally:
            os.kill(processes[other].pid, signal.SIGCONT)
        outcome = run.result()
        for process in processes.values():  # all at once: each takes seconds
            process.terminate()

    assert outcome.ok, f"{outcome.status}: {outcome.details}\n{outcome.log}{process_logs(tmp_path)}"
    assert node_id(host, victim) == identity
    assert before + answered(host, victim) == 1 + ROUNDS + 1, "the new process did the rest"
    (folder,) = host.folder("serverapp", "/results").glob("runs/*")
    assert untimed(folder) == untimed(quiet.folder)
    for name in HOSPITALS:
        lines = [*Audit(host.folder(name, "/state")).lines()]
        assert len(lines) == 2 * answered(host, other), "the log is whole, and of all messages"
        places = host.folder(name, "/state"), tmp_path / f"quiet-{name}"
        files = [sorted(place.rglob("*.safetensors")) for place in places]
        assert [len(found) for found in files] == [1, 1], "the model of its own, and no memory"
        for kept, expected in zip(*files, strict=True):
            models = load_file(kept), load_file(expected)
            assert all(np.array_equal(models[0][key], models[1][key]) for key in models[1])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What bin/make_certs.sh makes."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


def make_certificates(folder: Path, *arguments: str) -> str:
    """Call bin/make_certs.sh and return what it says."""
    if missing := [tool for tool in ("bash", "openssl", "ssh-keygen") if not shutil.which(tool)]:
        pytest.skip(f"bin/make_certs.sh needs {', '.join(missing)}")
    command = [str(REPO / "bin" / "make_certs.sh"), *arguments]
    environment = os.environ | {"OUT": str(folder)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def wait_until(run: Future[Outcome], reached: Callable[[], bool]) -> None:
    """Wait while the run goes on; it must not end before."""
    deadline = time.monotonic() + RUN_TIMEOUT
    while not reached():
        assert not run.done(), run.result().log
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def answered(host: Host, hospital: str) -> int:
    """How many messages a hospital has answered since it was started."""
    return len(re.findall(r"run \d+: ", host.log(hospital)))


def fetched(host: Host) -> int:
    """How many answers the coordinator has fetched from the SuperLink."""
    return host.log("superlink").count("confirm-message-received")


def node_id(host: Host, hospital: str) -> str | None:
    """What the SuperLink calls it; None before it is connected."""
    found = re.search(r"joined, as number (\d+)", host.log(hospital))
    return found[1] if found else None


class Host:
    """This machine in the place of the containers: their commands as processes, their paths as folders.

    Each service has its own folders and, for every port that it listens on, its own free port.
    """

    def __init__(self, root: Path, certificates: Path) -> None:
        self.root = root
        self.certificates = certificates
        self.ports = {(name, port): str(free_port()) for name in SERVICES for port in ("8000", "9092", "9099")}
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
        text = text.replace("0.0.0.0", "127.0.0.1").replace("--host=control", "--host=127.0.0.1")
        for secret in SERVICES[service]["secrets"]:  # a path that the service does not mount stays, and fails
            source, name = (secret["source"], secret["target"]) if isinstance(secret, dict) else (secret, secret)
            file = self.certificates / Path(DEPLOYMENT["secrets"][source]["file"]).name
            text = re.sub(rf"/run/secrets/{name}\b(?!-)", str(file), text)
        text = text.replace("/public/", f"{self.certificates}/public/")
        text = text.replace("=/site.toml", f"={self.folder(service, '/') / 'site.toml'}")
        for path in ("/data", "/state"):
            text = re.sub(rf'(?<=["=]){path}(?=["/]|$)', lambda found: str(self.folder(service, found[0])), text)
        return text

    def environment(self, service: str) -> dict[str, str]:
        """Return the image's environment with the service's own on top."""
        own = {key: str(value) for key, value in SERVICES[service].get("environment", {}).items()}
        return flower_environment(self.folder(service, own.pop("FLWR_HOME", "/tmp/flower"))) | own

    @contextmanager
    def up(self, service: str) -> Iterator[subprocess.Popen[str]]:
        """Run a service until its own health check passes, and then through the block."""
        command = [self.here(service, word) for word in SERVICES[service]["command"]]
        command[0] = sys.executable if command[0] == "python" else command[0]
        where = REPO if "working_dir" in SERVICES[service] else self.folder(service, "/results")
        environment = self.environment(service)
        _, *check = (self.here(service, word) for word in SERVICES[service]["healthcheck"]["test"])
        check[0] = sys.executable
        with (
            (self.root / f"{service}.log").open("w") as log,
            started(command, environment, cwd=where, stdout=log, stderr=log) as process,
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
