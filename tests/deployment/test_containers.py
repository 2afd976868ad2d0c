"""docker-compose.yml with a real engine: the commands of its head, as they stand there, on real data.

They build the image, start a coordinator and three hospitals, and train. A hospital is shut in, and can withdraw.
`make containers` runs this file. The image and the build cache stay; all else is removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import httpx
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from sklearn.datasets import load_breast_cancer

from bin.run import REPO
from edelweiss.client_app.cli import main
from edelweiss.common import read_overrides
from edelweiss.config import RunConfig
from tests.deployment.host import COMPOSE, HOSPITALS, SERVICES, operations
from tests.deployment.processes import PATIENCE, untimed
from tests.server_app.sites import run_at, with_secret

pytestmark = pytest.mark.containers

IMAGE = SERVICES["superlink"]["image"]
LARGEST, ADDED = 1.5e9, 1.05e9  # bytes of the image, and of that what it adds to python:slim, which has 0.13e9
LONG = 1800.0  # seconds for the build and the run
NOWHERE = "198.51.100.1"  # an address on the internet that is nobody's (RFC 5737)

# What the head of the file says to type; what it is for stands behind three spaces.
HEAD = re.findall(r"^#   (\S.*?)(?: {3,}.*)?$", COMPOSE.read_text(encoding="utf-8"), re.MULTILINE)
CERTIFICATES, FOLDERS, BUILD, COORDINATOR, REGISTER, EVERYBODY, RUN, RESULTS = HEAD


@dataclass
class Engine:
    """Docker in a copy of the repository, with a project of its own."""

    folder: Path
    project: str

    def __call__(self, command: str, timeout: float = PATIENCE) -> str:
        """Run a line as a reader would type it; returns what it prints."""
        done = self.tried(command, timeout)
        assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}"
        return done.stdout

    def tried(self, command: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a line that may fail."""
        environment = os.environ | {"COMPOSE_PROJECT_NAME": self.project}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

    def hand_over(self) -> None:
        """Give the keys and the data to the containers' user, who is no root."""
        if os.geteuid() == 0:
            self("chown -R 1000:1000 certificates data")

    def log(self, service: str) -> str:
        """Return what a service has said."""
        return self(f"docker compose logs --no-color {service}")

    def until(self, reached: Callable[[], bool], service: str) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < deadline, self.log(service)
            time.sleep(0.3)

    def answered(self, hospital: str) -> int:
        """How many messages a hospital has answered."""
        return len(re.findall(r"run \d+: ", self.log(hospital)))

    def settled(self) -> bool:
        """Whether no hospital has answered anything for two seconds."""
        before = [self.answered(name) for name in HOSPITALS]
        time.sleep(2)
        return before == [self.answered(name) for name in HOSPITALS]

    def numbers(self, hospital: str) -> list[str]:
        """Return the number under which a hospital joined, each time that it did."""
        return re.findall(r"joined, as number (\d+)", self.log(hospital))

    def gateway(self, network: str) -> str:
        """Return the address that this machine has, or would have, in a network."""
        what = "'{{(index .IPAM.Config 0).Gateway}}'"
        return self(f"docker network inspect -f {what} {self.project}_{network}").strip()

    def address(self, service: str, network: str) -> str:
        """Return a service's address in a network."""
        what = f'{{{{(index .NetworkSettings.Networks "{self.project}_{network}").IPAddress}}}}'
        return self(f"docker inspect -f '{what}' $(docker compose ps -q {service})").strip()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The federation of the file's head, ready to train."""
    folder = tmp_path_factory.mktemp("containers")
    engine = Engine(folder, f"edelweiss-{uuid.uuid4().hex[:8]}")
    if engine.tried("docker info && docker compose version").returncode:
        pytest.fail("no Docker engine with compose v2 answers here (docker info): it takes one to test containers")
    copy_of_the_repository(folder)
    # The build finds packages as this machine does; whoever has 1000:1000 taken says so, as the head tells.
    (folder / "docker-compose.override.yml").write_text("services: {superlink: {build: {network: host}}}\n")
    if os.geteuid():
        (folder / ".env").write_text(f"EDELWEISS_USER={os.geteuid()}:{os.getegid()}\n")
    try:
        engine(CERTIFICATES)
        engine(FOLDERS)
        for name, table in zip(HOSPITALS, tables(), strict=True):
            table.to_csv(folder / "data" / name / "data.csv", index=False)
        engine.hand_over()
        engine(BUILD, LONG)
        engine(COORDINATOR)
        engine(f"docker compose up -d {HOSPITALS[0]}")  # too early
        engine.until(lambda: "key is not registered" in engine.log(HOSPITALS[0]), HOSPITALS[0])
        engine(REGISTER)
        engine(EVERYBODY)
        for name in HOSPITALS:
            engine.until(lambda name=name: bool(engine.numbers(name)), name)  # type: ignore[misc]
        yield engine
    finally:
        engine("docker compose --profile tools down --volumes --remove-orphans")


def copy_of_the_repository(folder: Path) -> None:
    """Copy what git has, or would have: no data, no results."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listing, cwd=REPO, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (REPO / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, folder / name)


def tables() -> list[pd.DataFrame]:
    """Three hospitals of UCI's heart disease data; where they are not, three parts of the breast cancer data."""
    hearts = Path(os.environ.get("EDELWEISS_DATA", "")) / "heart_disease"
    if os.environ.get("EDELWEISS_DATA") and hearts.is_dir():
        read = [pd.read_csv(hearts / f"{name}.data", na_values="?") for name in ("cleveland", "hungarian", "va")]
        labelled = [table.drop(columns="target").assign(label=(table.target > 0).astype(int)) for table in read]
        return [table.drop_duplicates() for table in labelled]  # nobody says that they are other patients
    cancer = load_breast_cancer(as_frame=True)
    table = cancer.data.assign(label=1 - cancer.target)
    return [table.iloc[place::3] for place in range(3)]


def test_the_image_is_small_and_starts_without_any_network(engine: Engine) -> None:
    """It holds each role's command, can train by itself, and has nothing that is no part of the app."""
    alone = f"docker run --rm --network none --read-only --tmpfs /tmp --cap-drop ALL --workdir /app {IMAGE}"
    for command in ("flower-superlink --help", "edelweiss-executor --help", "flwr --version"):
        engine(f"{alone} {command}")
    assert "--superlink" in engine(f"{alone} edelweiss-site join --help")
    run = """rounds=1 sites=2 evaluate-every=0 runs-dir="/tmp/runs" """
    assert "results in /tmp/runs" in engine(f"{alone} edelweiss --run-config '{run}'")
    outside = engine(f"{alone} ls -A /app").split()
    assert not {"tests", "docs", "data", "certificates", "docker-compose.yml", ".git"} & set(outside)
    packages = engine(f"{alone} python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'").strip()
    sizes = engine(f"{alone} du -sb {packages} /app")
    assert sum(int(line.split()[0]) for line in sizes.splitlines()) < ADDED, sizes
    assert int(engine(f"docker image inspect --format '{{{{.Size}}}}' {IMAGE}")) < LARGEST


@pytest.mark.parametrize("name", HOSPITALS)
def test_a_hospital_reaches_the_coordinator_and_nothing_else(engine: Engine, name: str) -> None:
    """Neither by name nor by number, where a refusal would mean that it can."""
    other = next(hospital for hospital in HOSPITALS if hospital != name)
    machine = engine.gateway(name)
    closed = [f"{other}:9099", f"{engine.address(other, other)}:9099", f"{machine}:22", f"{machine}:9092"]
    closed += [f"{engine.address('superlink', 'control')}:8000", f"{engine.address('superlink', 'fleet')}:9092"]
    closed += ["serverapp:9099", f"{engine.address('serverapp', 'control')}:9099"]
    closed += [f"{NOWHERE}:443", "example.org:443"]
    answers = python(engine, name, PROBE, "superlink:9092", "superlink:8000", *closed).splitlines()
    assert answers[:2] == ["superlink:9092 reached", "superlink:8000 refused"]
    assert answers[2:] == [f"{target} away" for target in closed]
    routes = engine(f"docker compose exec -T {name} cat /proc/net/route").splitlines()[1:]
    assert len(routes) == 1, "there is its own network, and no way to anywhere"


PROBE = """
    import concurrent.futures, socket, sys
    def found(target):
        host, _, port = target.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=60 if host == "superlink" else 2)
            return "reached"
        except ConnectionRefusedError:
            return "refused"
        except OSError:  # no such name, no route, no answer
            return "away"
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for target, how in zip(sys.argv[1:], pool.map(found, sys.argv[1:])):
            print(target, how)
"""


def test_a_stranger_in_a_hospitals_place_gets_nowhere(engine: Engine) -> None:
    """Without its certificate nothing is taken, 600 MB included; nor at the port for jobs without the operator's."""
    before = memory(engine, "superlink")
    assert python(engine, HOSPITALS[0], STRANGER).split() == ["refused"]
    assert memory(engine, "superlink") - before < 100e6
    jobs = "docker compose run --rm {} flower list"
    assert engine.tried(jobs.format("-e EDELWEISS_OPERATOR_CERTIFICATE=")).returncode
    engine(jobs.format(""))


STRANGER = """
    import socket, ssl
    context = ssl.create_default_context(cafile="/run/secrets/ca")
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(socket.create_connection(("superlink", 9092)), server_hostname="superlink") as connection:
        try:
            for _ in range(600):
                connection.sendall(bytes(10**6))
            print("taken")
        except OSError:
            print("refused")
"""


@pytest.mark.parametrize("name", HOSPITALS)
def test_a_hospital_has_no_privileges_and_writes_to_its_state_and_memory_only(engine: Engine, name: str) -> None:
    lines = engine(f"docker compose exec -T {name} cat /proc/1/status").splitlines()
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    assert {int(status[key], 16) for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert "0" not in status["Uid"].split()
    assert python(engine, name, WRITABLE).split() == ["/dev/mqueue", "/dev/shm", "/page", "/state", "/tmp"]
    mounts = engine(f"docker compose exec -T {name} cat /proc/mounts").splitlines()
    memory = {line.split()[1] for line in mounts if line.split()[0] in ("tmpfs", "shm", "mqueue")}
    assert {"/dev/mqueue", "/dev/shm", "/tmp"} <= memory


WRITABLE = """
    import os
    found = []
    for folder, folders, files in os.walk("/"):
        paths = [os.path.join(folder, name) for name in folders if folder != "/" or name not in ("proc", "sys")]
        found += [path for path in paths if os.access(path, os.W_OK) and not os.path.islink(path)]
        folders[:] = [os.path.basename(path) for path in paths if path not in found]
        files = [os.path.join(folder, name) for name in files]
        found += [path for path in files if os.path.isfile(path) and os.access(path, os.W_OK)]
    print(*sorted(found))
"""


@pytest.mark.parametrize("name", HOSPITALS)
def test_the_page_of_a_hospital_is_at_the_loopback_interface_of_this_machine_only(engine: Engine, name: str) -> None:
    """An operator logs in there; another name in the address bar, another interface and a stranger get nothing."""
    page = name.replace("hospital", "page")
    port = int(SERVICES[page]["ports"][0].split(":")[1])
    url = f"http://127.0.0.1:{port}"
    engine.until(lambda: answers(f"{url}/healthz"), page)
    own = engine(f"docker compose exec -T {name} edelweiss-site password anna --state-dir /state").split()[-1]
    with httpx.Client(base_url=url, follow_redirects=True, timeout=PATIENCE) as client:
        before = re.search(r'name="before" value="([^"]+)"', client.get("/login").text)
        assert before
        given = {"name": "anna", "password": own, "before": before[1]}
        assert name in client.post("/login", data=given).text
        assert client.get("/runs").url.path == "/runs"
        stranger = httpx.get(f"{url}/runs", timeout=PATIENCE)
        assert stranger.headers["location"].startswith("/login"), "without the session"
        assert client.get("/", headers={"host": f"evil.example:{port}"}).status_code == 403, "DNS rebinding"
        assert client.post("/login", data=given, headers={"origin": "http://evil.example"}).status_code == 403
    with socket.socket() as others:
        others.settimeout(5)
        assert others.connect_ex((engine.gateway("pages"), port)), "nobody else's interface"
    assert engine(f"docker compose port {page} 8470").strip() == f"127.0.0.1:{port}"
    found = engine(f"docker compose exec -T {page} ls -A /page /run /tmp").split()
    assert "page.sock" in found
    assert "secrets" not in found
    assert engine.tried(f"docker compose exec -T {page} touch /page/x").returncode, "it changes nothing there"
    neighbours = [engine.address(other, "pages") for other in SERVICES if other.startswith("page-") and other != page]
    closed = [f"{address}:8470" for address in neighbours] + [f"{NOWHERE}:443", "superlink:9092", f"{name}:9099"]
    reached = python(engine, page, PROBE, *closed).splitlines()
    assert reached == [f"{target} away" for target in closed]


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=PATIENCE).is_success
    except httpx.HTTPError:
        return False


def test_nothing_runs_as_root_unless_told(engine: Engine) -> None:
    run = f"EDELWEISS_USER=0:0 {{}} docker compose run --rm --no-deps {HOSPITALS[0]} id -u"
    refused = engine.tried(run.format("EDELWEISS_ALLOW_ROOT="))
    assert refused.returncode
    assert "EDELWEISS_USER" in refused.stdout
    assert engine(run.format("EDELWEISS_ALLOW_ROOT=1")).split()[-1] == "0"


def test_the_doctor_finds_a_hospital_well_and_names_what_is_wrong(engine: Engine) -> None:
    """With the settings of the container, in the container: the key is in use, for the hospital has joined."""
    doctor = f"docker compose exec -T {HOSPITALS[0]} edelweiss-site doctor --policy=/site.toml"
    assert "error" not in engine(f"{doctor} --site={HOSPITALS[0]}")
    wrong = engine.tried(f"{doctor} --superlink=superlink:9093")
    assert wrong.returncode == 1
    assert re.search(r"^error +port +superlink:9093 ", wrong.stdout, re.MULTILINE), wrong.stdout


def test_they_train_though_a_hospital_is_stopped_and_started_between_two_rounds(engine: Engine, tmp_path: Path) -> None:
    """The model is that of the local engine on the same data, where nobody is stopped.

    The round after which it is stopped stays open while it is gone, because another hospital is held up.
    """
    victim, other, third = HOSPITALS
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(engine, RUN, LONG)
        engine.until(lambda: engine.answered(other) > 2, other)
        engine("docker compose pause serverapp")  # so that nobody is held up while it sends
        engine.until(engine.settled, other)
        engine(f"docker compose pause {other}")
        engine("docker compose unpause serverapp")
        try:
            due = engine.answered(other) + 1
            engine.until(lambda: engine.answered(victim) == engine.answered(third) == due, victim)
            # An answer that has not been fetched when its site goes offline counts as missing.
            engine.until(lambda: engine.log("superlink").count("confirm-message-received") == 3 * due - 1, "superlink")
            engine(f"docker compose stop {victim}")
            engine(f"docker compose start {victim}")
            engine.until(lambda: len(engine.numbers(victim)) == 2, victim)
        finally:
            engine(f"docker compose unpause {other}")
        run.result()

    overrides = read_overrides([re.findall("submit '(.*)'", RUN)[0]])
    nodes = []
    for name in HOSPITALS:
        cat = f"docker compose exec -T {name} cat /state/policy/"
        secrets = engine(f"{cat}secret")[-64:], engine(f"{cat}randomness")[-64:]
        nodes.append(with_secret(name, engine.folder / "data" / name, tmp_path / name, *secrets))
    quiet = run_at(RunConfig.parse(overrides | {"runs-dir": str(tmp_path / "quiet")}), nodes)

    assert len(set(engine.numbers(victim))) == 1, "its key makes it the same hospital"
    for name in HOSPITALS:  # a query, ten rounds, the last evaluation and the last receipts, over the restart
        audit = engine(f"docker compose exec -T {name} edelweiss-site audit --state-dir=/state")
        lines = engine(f"docker compose exec -T {name} cat /state/audit.jsonl")
        assert len(re.findall(r'"way":"(?:in|out)"', lines)) == 2 * 13, audit
    engine(RESULTS)
    [folder] = (engine.folder / "results" / "runs").iterdir()
    rounds, expected = untimed(folder), untimed(quiet.folder)
    assert [line["round"] for line in rounds] == list(range(1, 11))
    assert rounds[-1]["auroc"] == pytest.approx(expected[-1]["auroc"], abs=0.01)
    assert rounds[-1]["auroc"] > 0.8
    model = load_file(folder / "model.safetensors")
    for name, array in load_file(quiet.folder / "model.safetensors").items():
        np.testing.assert_allclose(model[name], array, rtol=1e-3, atol=1e-4)


def test_states_are_backed_up_and_restored_as_the_page_says(engine: Engine) -> None:
    """Into volumes, whose folders are another user's; the hospital's operator has to say that nothing is missing."""
    name = HOSPITALS[0]
    backs_up, restores, _, coordinator = operations("Backup and restore")
    python(engine, name, ACT)
    for line in (*backs_up, *restores):
        engine(line)
    engine.until(lambda: "put back from a copy" in engine.log(name), name)
    engine(f"docker compose exec -T {name} edelweiss-site audit --state-dir=/state --acknowledge")
    for line in (*coordinator, *(each.replace(name, "superlink") for each in restores)):
        engine(line)
    engine.until(lambda: len(engine.tried(NODES).stdout.split("online")) == 1 + len(HOSPITALS), "superlink")


ACT = """
    from pathlib import Path
    from edelweiss.client_app.audit import Audit
    Audit(Path("/state")).operator("looked")  # a log, though nobody may have trained yet
"""
NODES = "docker compose run --rm flower supernode list"


def test_they_train_in_private_under_masks(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Their rules demand secure aggregation and have a budget; nothing but sums leaves."""
    assert main(["peers", *map(str, sorted((engine.folder / "certificates" / "public").glob("*.pub")))]) == 0
    rules = f'secure-aggregation = "required"\n{capsys.readouterr().out}\n[privacy]\nepsilon = 20.0\n'
    file = engine.folder / "site.toml"  # what is mounted is this file and no other in its place
    file.write_text(file.read_text().replace('# label = "outcome"', 'label = "label"') + rules)
    before = {name: engine.numbers(name) for name in HOSPITALS}
    engine(f"docker compose restart {' '.join(HOSPITALS)}")
    for name in HOSPITALS:
        engine.until(lambda name=name: len(engine.numbers(name)) > len(before[name]), name)  # type: ignore[misc]
    keys = """algorithm="codasca" rounds=2 local-steps=2 model="linear" secure-aggregation=true dp.epsilon=8.0"""
    engine(RUN.replace("rounds=10", keys), LONG)
    for name in HOSPITALS:
        lines = engine(f"docker compose exec -T {name} cat /state/audit.jsonl").splitlines()
        sent = [line for line in map(json.loads, lines) if line["way"] == "out"][-4:]  # two rounds, evaluation, end
        assert {array["name"] for line in sent for array in line["arrays"]} == {"sum"}, sent


def test_a_hospital_can_withdraw_and_join_again_with_a_new_key(engine: Engine) -> None:
    """What it has kept is removed; a key that was unregistered is never accepted again."""
    name = HOSPITALS[-1]
    number = engine.numbers(name)[-1]
    flower = "docker compose run --rm flower supernode"
    engine(f"docker compose rm --stop --force {name}")
    engine(f"docker volume rm {engine.project}_{name}-state")
    assert number in engine(f"{flower} list")
    engine(f"{flower} unregister {number}")
    assert number not in engine(f"{flower} list")
    engine(f"docker compose up -d {name}")
    engine.until(lambda: "key is not registered" in engine.log(name), name)
    refusal = engine.tried(f"{flower} register /public/{name}.pub")
    assert refusal.returncode
    assert "already in use" in refusal.stdout

    engine(f"docker compose rm --stop --force {name}")
    for file in (f"{name}.key", f"public/{name}.pub"):
        (engine.folder / "certificates" / file).unlink()
    engine(f"bin/make_certs.sh {name}")
    engine.hand_over()
    engine(f"{flower} register /public/{name}.pub")
    engine(f"docker compose up -d {name}")
    engine.until(lambda: bool(engine.numbers(name)), name)
    assert engine.numbers(name) != [number]


def memory(engine: Engine, service: str) -> int:
    """Return the most memory that a process of a service has had, in bytes."""
    told = engine(f"docker compose exec -T {service} sh -c 'cat /proc/[0-9]*/status'")
    return 1024 * max(map(int, re.findall(r"VmHWM:\s+(\d+)", told)))


def python(engine: Engine, hospital: str, program: str, *arguments: str) -> str:
    """Run a program in a hospital's container."""
    (engine.folder / "program.py").write_text(dedent(program))
    return engine(f"docker compose exec -T {hospital} python - {' '.join(arguments)} <program.py")
