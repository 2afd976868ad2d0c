"""What a site connects with: a key and certificates, or one line that says what to do."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import CertificateBuilder, Name, NameAttribute
from cryptography.x509.oid import NameOID

from edelweiss.client_app.connection import JoinConfig, read_certificate, read_certificates, read_key
from edelweiss.common import ConfigError
from tests.said import has


def made(folder: Path, *options: str) -> str:
    """Make a key as the page for hospitals does, but for these options."""
    file = folder / "it.key"
    subprocess.run(["ssh-keygen", "-q", "-C", "here", "-f", str(file), *options], check=True)
    return str(file)


def test_a_key_as_the_page_makes_it_is_read(tmp_path: Path) -> None:
    assert read_key(made(tmp_path, "-t", "ecdsa", "-b", "384", "-N", "")).curve.key_size == 384


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("-t", "ecdsa", "-b", "384", "-N", "secret"), "passphrase"),
        (("-t", "ed25519", "-N", ""), "ECDSA"),
    ],
)
def test_one_that_cannot_be_used_is_named_with_its_fix(tmp_path: Path, options: tuple[str, ...], named: str) -> None:
    file = made(tmp_path, *options)
    with pytest.raises(ConfigError, check=has(named, file, "ssh-keygen")):
        read_key(file)


@pytest.mark.parametrize("read", [read_key, read_certificates])
def test_other_files_are_refused(tmp_path: Path, read: object) -> None:
    assert callable(read)
    for name, content in {"empty": b"", "binary": bytes(range(256)), "text": b"hello"}.items():
        (tmp_path / name).write_bytes(content)
    for name in ("empty", "binary", "text", "missing", "."):
        with pytest.raises(ConfigError, check=has(tmp_path / name)):
            read(str(tmp_path / name))


def certified(folder: Path, key: EllipticCurvePrivateKey, days: float) -> str:
    """Write a certificate for a key that ends so many days from now."""
    name, now = Name([NameAttribute(NameOID.COMMON_NAME, "here")]), datetime.now(UTC)
    made = CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(99), now + timedelta(days))
    file = folder / "it.crt"
    file.write_bytes(made.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return str(file)


def test_the_sites_certificate_is_for_its_key_and_has_not_expired(tmp_path: Path) -> None:
    key, other = generate_private_key(SECP384R1()), generate_private_key(SECP384R1())
    assert read_certificate(certified(tmp_path, key, 1), key)
    for owner, days in ((other, 1), (key, -1)):
        file = certified(tmp_path, owner, days)
        with pytest.raises(ConfigError, check=has("certificate", file, "coordinator")):
            read_certificate(file, key)


def test_options_count_more_than_the_file_whose_rules_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('superlink = "a:1"\nsite = "north"\ninsecure = true\n[policy]\nanything = 1\n')
    config = JoinConfig.read(str(file), {"site": "south"})
    assert (config.superlink, config.site, config.insecure) == ("a:1", "south", True)
    assert config.node_config() == {"site": "south"}
