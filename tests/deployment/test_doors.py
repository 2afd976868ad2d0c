"""The coordinator's doors: who gets in at the port for sites and at the port for jobs, and what may be asked there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP384R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.fleet_pb2_grpc import FleetStub

from bin.run import free_port
from edelweiss.client_app.connection import read_key
from edelweiss.client_app.fleet import connected, introduced, public_half
from edelweiss.lab.submission import flower_environment, started
from edelweiss.server_app.control import CERTIFICATE, KEY
from tests.deployment.host import SERVICES, Host
from tests.deployment.processes import PATIENCE, Guarded, until

pytestmark = pytest.mark.deployments

BIG = 600 * 10**6  # bytes
SIGNED = ECDSA(SHA256())
DOORS = ["--insecure", "--enable-supernode-auth", "FLWR_INTERNAL_GRPC_CONTROL_API", CERTIFICATE]
FILES = {"ca-cert": "ca.crt", "cert": "superlink.crt", "key": "superlink.key"}
VICTIM, NEIGHBOUR = "hospital-a", "hospital-b"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Host]:
    """A SuperLink as docker-compose.yml starts it, at which the victim and its neighbour are registered."""
    host = Host(tmp_path_factory.mktemp("doors"), certificates)
    with host.up("superlink"):
        host.register(VICTIM, NEIGHBOUR)
        yield host


def credentials(certificates: Path, name: str = "") -> grpc.ChannelCredentials:
    """Return how a caller speaks TLS; with a hospital's name, showing its certificate."""
    authority = (certificates / "ca.crt").read_bytes()
    if not name:
        return grpc.ssl_channel_credentials(authority)
    key = read_key(str(certificates / f"{name}.key"))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return grpc.ssl_channel_credentials(authority, private, (certificates / "public" / f"{name}.crt").read_bytes())


def activated(
    port: int | str, tls: Any, signs: EllipticCurvePrivateKey, node: bytes, timeout: float = PATIENCE, **said: Any
) -> Any:
    """Ask a SuperLink to activate the node of a public key, in a call signed by a key; `said` is said in its place."""
    now = datetime.now(UTC).isoformat()
    header = {"public-key-bin": public_half(signs), "timestamp": now, "signature-bin": signs.sign(now.encode(), SIGNED)}
    signed = [(f"flwr-{name}", said.get(name.partition("-")[0], value)) for name, value in header.items()]
    sizes = [("grpc.max_send_message_length", -1)]
    with grpc.secure_channel(f"127.0.0.1:{port}", tls, sizes) as channel:
        request = ActivateNodeRequest(public_key=node, heartbeat_interval=30)
        return FleetStub(channel).ActivateNode(request, metadata=signed, timeout=timeout).node_id


def refusal(*arguments: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as error:
        activated(*arguments)
    code: grpc.StatusCode = error.value.code()  # type: ignore[attr-defined]
    return code


def test_flowers_superlink_activates_a_hospitals_node_for_a_stranger(guarded: Guarded, tmp_path: Path) -> None:
    """The flaw of docs/activate-node.md: any key signs, and the node is whose the request says."""
    made = guarded.folder / "certificates"
    home = tmp_path / "home"
    home.mkdir()
    address = f'address = "127.0.0.1:{guarded.control}"\nroot-certificates = "{made}/ca.crt"\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "it"\n[superlink.it]\n{address}')
    key = tmp_path / "victim.key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True)
    command = ["flwr", "supernode", "register", f"{key}.pub"]
    subprocess.run(command, env=flower_environment(home), check=True, capture_output=True)
    victim = public_half(read_key(str(key)))
    assert activated(guarded.fleet, credentials(made), generate_private_key(SECP384R1()), victim)


def test_a_stranger_gets_no_connection(host: Host, certificates: Path) -> None:
    port, victim = host.ports["superlink", "9092"], read_key(str(certificates / f"{VICTIM}.key"))
    stranger = generate_private_key(SECP384R1())
    for signs in (stranger, victim):  # not even with the victim's key, as long as its certificate is not shown
        assert refusal(port, credentials(certificates), signs, public_half(victim)) is grpc.StatusCode.UNAVAILABLE
    said = introduced(f"127.0.0.1:{port}", (certificates / "ca.crt").read_bytes(), victim, None, known=False)
    assert "this site's certificate" in said, "a hospital that has not named its certificate is told so"


def test_a_neighbour_acts_for_nobody_else(host: Host, certificates: Path) -> None:
    port = host.ports["superlink", "9092"]
    victim, own = (read_key(str(certificates / f"{name}.key")) for name in (VICTIM, NEIGHBOUR))
    shown = credentials(certificates, NEIGHBOUR)
    for signs, node in ((own, victim), (victim, victim), (victim, own)):
        assert refusal(port, shown, signs, public_half(node)) is grpc.StatusCode.UNAUTHENTICATED
    assert activated(port, shown, own, public_half(own))
    assert activated(port, credentials(certificates, VICTIM), victim, public_half(victim))


def test_what_cannot_be_read_is_refused_without_a_traceback(host: Host, certificates: Path) -> None:
    port, own = host.ports["superlink", "9092"], read_key(str(certificates / f"{NEIGHBOUR}.key"))
    shown, ed25519 = credentials(certificates, NEIGHBOUR), Ed25519PrivateKey.generate().public_key()
    other = ed25519.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for said in ({"public": b"no key"}, {"public": other}, {"timestamp": "yesterday"}, {"timestamp": "2026-01-01"}):
        with pytest.raises(grpc.RpcError) as error:
            activated(port, shown, own, public_half(own), **said)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED, said  # type: ignore[attr-defined]
    assert "Traceback" not in host.log("superlink")


def test_a_large_request_is_not_taken(host: Host, certificates: Path) -> None:
    """From nobody; and the SuperLink's memory does not grow by it."""
    port, own = host.ports["superlink", "9092"], read_key(str(certificates / f"{NEIGHBOUR}.key"))
    before = memory(host)
    for tls in (credentials(certificates), credentials(certificates, NEIGHBOUR)):
        code = refusal(port, tls, own, bytes(BIG))
        assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert memory(host) - before < BIG / 4


def test_a_superlink_does_not_start_with_a_door_open(certificates: Path, tmp_path: Path) -> None:
    tls = [f"--ssl-{kind}file={certificates}/{file}" for kind, file in FILES.items()]
    operator = {CERTIFICATE: str(certificates / "operator.crt")}
    nowhere = {CERTIFICATE: str(tmp_path / "nowhere.crt"), "FLWR_INTERNAL_GRPC_CONTROL_API": "1"}
    for options, variables, named in (
        (["--insecure"], operator, ["--insecure", "--enable-supernode-auth"]),
        ([*tls, "--fleet-api-type=grpc-adapter"], {}, ["--enable-supernode-auth", CERTIFICATE]),
        ([*tls, "--enable-supernode-auth"], nowhere, list(nowhere)),
    ):
        command = ["edelweiss-superlink", f"--port={free_port()}", f"--fleet-api-address=127.0.0.1:{free_port()}"]
        environment = flower_environment(tmp_path) | variables
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 2, done.stderr
        problems = [line for line in done.stderr.splitlines() if line.startswith("  - ")]
        assert [name for name in DOORS if any(name in line for line in problems)] == sorted(named, key=DOORS.index)


def memory(host: Host) -> int:
    """Return the most memory that the SuperLink has had, in bytes."""
    status = Path(f"/proc/{host.pid('superlink')}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def test_the_port_for_jobs_is_the_operators_alone(host: Host, certificates: Path) -> None:
    command, environment = [*SERVICES["flower"]["entrypoint"], "list"], host.environment("flower")
    nobody = {name: text for name, text in environment.items() if name not in (CERTIFICATE, KEY)}
    hospital = certificates / f"{NEIGHBOUR}.pem"
    key = read_key(str(certificates / f"{NEIGHBOUR}.key"))
    hospital.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    another = {CERTIFICATE: str(certificates / "public" / f"{NEIGHBOUR}.crt"), KEY: str(hospital)}
    for place, lets_in in ((environment, True), (nobody, False), (nobody | another, False)):
        done = subprocess.run(command, env=place, capture_output=True, text=True)
        assert (done.returncode == 0) is lets_in, done.stdout + done.stderr
    missing = str(certificates / "missing.key")
    done = subprocess.run(command, env=environment | {KEY: missing}, capture_output=True, text=True)
    assert done.returncode
    assert missing in done.stderr


def test_a_site_joins_a_superlink_of_a_newer_flower(tmp_path: Path) -> None:
    """Of 1.42, over the libraries that are here; its gRPC server for sites stands behind a variable."""
    newer = tmp_path / "newer"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(newer), "flwr==1.42.0"]
    if (installed := subprocess.run(pip, capture_output=True, text=True)).returncode:
        pytest.skip(f"flwr 1.42.0 cannot be installed here: {installed.stderr.strip().splitlines()[-1]}")
    fleet, control = free_port(), free_port()
    command = [str(newer / "bin" / "flower-superlink"), "--insecure", "--isolation=process"]
    command += ["--host=127.0.0.1", f"--port={control}", "--fleet-api-type=grpc-rere"]
    command += [f"--fleet-api-address=127.0.0.1:{fleet}"]
    environment = flower_environment(tmp_path) | {"FLWR_INTERNAL_GRPC_FLEET_API": "1", "PYTHONPATH": str(newer)}
    said: list[str] = []
    with (tmp_path / "log").open("w") as log, started(command, environment, stdout=log, stderr=log):
        until(lambda: "Uvicorn running" in (tmp_path / "log").read_text(), (tmp_path / "log").read_text)
        with connected(f"127.0.0.1:{fleet}", None, None, wait=time.sleep, say=said.append) as site:
            assert site.node_id
            assert site.receive() is None
    assert not said
