"""The settings of a connection to a coordinator: address, certificate authority, key."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from edelweiss.common import ConfigError, Value, shorter
from edelweiss.common.files import TEXT, read_file, read_toml, reason
from edelweiss.config.node import SiteConfig
from edelweiss.config.notify import Notify
from edelweiss.web.server import address_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ROOT = "EDELWEISS_ALLOW_ROOT"  # environment variable: 1 lets a site be root


TABLES = ("policy", "privacy", "studies")
"""Tables of a site's file beside its settings; `client_app.policy.rules` reads them."""


def address(text: str) -> str:
    """Return the text if it is HOST:PORT, or empty."""
    host, colon, port = text.rpartition(":")
    port = port if port.isascii() and port.isdecimal() and len(port) <= 5 else "0"
    if text and not (host and colon and host.isprintable() and 0 < int(port) < 2**16):
        raise ValueError("must be HOST:PORT, such as coordinator.example.org:9092")
    return text


Address = Annotated[str, AfterValidator(address)]


class JoinConfig(SiteConfig):
    """The settings of ``join``, from its options or the top-level keys of the file named by ``--policy``."""

    superlink: Address = Field("", description="HOST:PORT of the coordinator")
    root_certificates: str = Field("", description="file of the authority that signed the coordinator's certificate")
    certificate: str = Field(
        "",
        description="file of the certificate that the coordinator has signed for the key (PEM), where it asks for one",
    )
    insecure: bool = Field(False, description="no TLS, and the key only seals answers: for tests on one machine")
    health: Address = Field("", description="HOST:PORT at which to answer health checks (gRPC); empty: nowhere")
    page: Annotated[str, AfterValidator(address_of)] = Field(
        "",
        description="127.0.0.1:PORT or unix:PATH at which join serves the site's page; needs state-dir; empty: no page",
    )

    @classmethod
    def read(cls, file: str, options: Mapping[str, Value], alone: bool = False) -> JoinConfig:
        """Read the file, if one is named; options take precedence; ``alone`` it may lack a coordinator.

        Raises
        ------
        ConfigError
            Listing everything that is wrong.
        """
        values: dict[str, Any] = {}
        if file:
            try:
                values = read_toml(file)
            except (OSError, ValueError) as error:
                raise ConfigError("policy", [f"{shorter(file)} cannot be read: {reason(error)}"]) from None
            for table in TABLES:
                values.pop(table, None)  # which `client_app.policy` reads
        notify, wrong = Notify.of(values.pop("notify", {}))
        values |= options
        config, problems = cls.checked(values)
        problems += wrong
        if notify and not values.get("state-dir"):
            problems.append("notify: it needs a state-dir, where it is noted what you were told")
        if alone and not values.get("superlink"):
            values.setdefault("insecure", not values.get("root-certificates"))
        elif not values.get("superlink"):
            problems.append("superlink is missing: name the coordinator, as in 'coordinator.example.org:9092'")
        if bool(values.get("insecure")) == bool(values.get("root-certificates")):
            problems.append("root-certificates: name the coordinator's ca.crt; without TLS, say insecure instead")
        if values.get("certificate") and not (values.get("key") and values.get("root-certificates")):
            problems.append("certificate: it is for a key and goes with TLS: name key and root-certificates, too")
        if config is None or problems:
            raise ConfigError("join", problems)
        return config

    def node_config(self) -> dict[str, Value]:
        """Return the node-config for the ClientApp."""
        return self.model_dump(by_alias=True, exclude_defaults=True, include=set(SiteConfig.model_fields))


def root_problem() -> str:
    """Return why this process is not to be a site, if it is root and nobody has allowed that; else an empty text."""
    if os.geteuid() or os.environ.get(ROOT) == "1":
        return ""
    mend = f"start it as a user who may read the data and the key; in a container of a user's own, set {ROOT}=1"
    return f"root: a site reads files of this machine and listens to another one, so it is no root; {mend}"


def read_key(file: str) -> EllipticCurvePrivateKey:
    """Read a private key.

    Raises
    ------
    ConfigError
        If it is not one that Flower can use.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(read_file(file, TEXT), None)
    except OSError as error:
        raise ConfigError("join", [f"key: {shorter(file)} cannot be read: {reason(error)}"]) from None
    except TypeError:  # a passphrase was not given
        mend = f"remove it with ssh-keygen -p -N '' -f {file}"
        raise ConfigError("join", [f"key: {file} has a passphrase, which cannot be typed here; {mend}"]) from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        mend = "make one with ssh-keygen -t ecdsa -b 384 -N ''"
        raise ConfigError("join", [f"key: {file} is not a private ECDSA key in OpenSSH's format; {mend}"])
    return key


def read_certificates(file: str) -> bytes:
    """Read certificates in PEM.

    Raises
    ------
    ConfigError
        If there are none.
    """
    from cryptography.x509 import load_pem_x509_certificates

    try:
        pem = read_file(file, TEXT)
        load_pem_x509_certificates(pem)
    except OSError as error:
        raise ConfigError("join", [f"root-certificates: {shorter(file)} cannot be read: {reason(error)}"]) from None
    except ValueError:
        raise ConfigError("join", [f"root-certificates: {file} holds no certificate in PEM"]) from None
    return pem


def read_certificate(file: str, key: EllipticCurvePrivateKey) -> bytes | None:
    """Read the site's own certificate in PEM; None if no file is named.

    Raises
    ------
    ConfigError
        If there is none in it, it is for another key, or it has expired.
    """
    from cryptography.x509 import load_pem_x509_certificate

    if not file:
        return None
    try:
        pem = read_file(file, TEXT)
        certificate = load_pem_x509_certificate(pem)
    except OSError as error:
        raise ConfigError("join", [f"certificate: {shorter(file)} cannot be read: {reason(error)}"]) from None
    except ValueError:
        raise ConfigError("join", [f"certificate: {file} holds no certificate in PEM"]) from None
    if certificate.public_key() != key.public_key():
        raise ConfigError("join", [f"certificate: {file} is for another key than key: send the coordinator this one's"])
    if (end := certificate.not_valid_after_utc) < datetime.now(UTC):
        raise ConfigError("join", [f"certificate: {file} ended on {end:%Y-%m-%d}: get another from the coordinator"])
    return pem


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the file, and each key of `JoinConfig`."""
    parser.add_argument(
        "--policy",
        default="",
        metavar="SITE.toml",
        help="file with any of these keys, and your rules in its table [policy]",
    )
    for key, f in JoinConfig.keys().items():
        if key == "policy":
            continue
        kind: dict[str, Any] = {"metavar": "VALUE", "type": f.annotation}
        if f.annotation is bool:
            kind = {"action": "store_const", "const": True}
        parser.add_argument(f"--{key}", help=f.description, **kind)


def join_config(options: argparse.Namespace, alone: bool = False) -> JoinConfig:
    """Read the options; see `JoinConfig.read`.

    Raises
    ------
    ConfigError
        Listing everything that is wrong.
    """
    values = {key.replace("_", "-"): value for key, value in vars(options).items() if value is not None}
    del values["command"]
    file = str(values.pop("policy"))
    return JoinConfig.read(file, values | ({"policy": file} if file else {}), alone)
