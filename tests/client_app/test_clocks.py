"""A clock that is wrong, and a certificate that is not valid now, are told apart from a wrong authority and key."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc  # type: ignore[import-untyped,unused-ignore]  # has no types
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from flwr.server.superlink.fleet.grpc_rere import node_auth_server_interceptor as flower

from edelweiss.client_app.connection import JoinConfig, read_key
from edelweiss.client_app.doctor.coordinator import examine_connection
from edelweiss.client_app.fleet import introduced

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


@contextmanager
def coordinator(folder: Path, valid: tuple[int, int], interceptors: Sequence[object] = ()) -> Iterator[JoinConfig]:
    """Serve TLS with a certificate that is valid between these days from now; yields how a site joins."""
    own = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "superlink")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, own.public_key(), 1, NOW + valid[0] * DAY, NOW + valid[1] * DAY)
    made = made.add_extension(here, False).add_extension(x509.BasicConstraints(True, None), True)
    authority = made.sign(own, hashes.SHA256()).public_bytes(Encoding.PEM)
    private = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "ca.crt").write_bytes(authority)
    key = folder / "site.key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True)
    server = grpc.server(ThreadPoolExecutor(1), interceptors=interceptors)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(private, authority)]))
    server.start()
    options = {"superlink": f"127.0.0.1:{port}", "root-certificates": f"{folder}/ca.crt", "key": str(key)}
    try:
        yield JoinConfig.read("", options)
    finally:
        server.stop(None)


def said(site: JoinConfig) -> tuple[str, dict[str, str]]:
    """Return why `join` has no connection, and the errors of `doctor` by what they are about."""
    authority = Path(site.root_certificates).read_bytes()
    refusal = introduced(site.superlink, authority, read_key(site.key), None, known=False)
    return refusal, {found.about: found.text for found in examine_connection(site) if found.level == "error"}


@pytest.mark.parametrize(
    ("valid", "about", "words"),
    [((-2, -1), "TLS", "certificate has expired"), ((1, 2), "clock", "certificate is not valid yet")],
)
def test_a_certificate_that_is_not_valid_now_is_no_wrong_authority(
    tmp_path: Path, valid: tuple[int, int], about: str, words: str
) -> None:
    with coordinator(tmp_path, valid) as site:
        refusal, errors = said(site)
    assert words in refusal
    assert list(errors) == [about]
    assert words in errors[about]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """By Flower's own check of a call's time, at a coordinator that is an hour off."""
    monkeypatch.setattr(flower, "now", lambda: datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours))
    check = flower.NodeAuthServerInterceptor(state_factory=None)  # type: ignore[arg-type]  # comes after the time
    with coordinator(tmp_path, (-1, 100), [check]) as site:
        refusal, errors = said(site)
    assert "clocks of site and coordinator differ" in refusal
    assert errors == {"clock": refusal}
