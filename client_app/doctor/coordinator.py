"""Tests of the connection to the coordinator."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.client_app.connection import JoinConfig, read_certificate, read_certificates, read_key
from edelweiss.client_app.doctor import Finding
from edelweiss.client_app.proxy import ProxyError, proxy_for, said_of
from edelweiss.common import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

SECONDS = 5.0  # timeout of a connection
NEEDED = "if this network needs a proxy, set https_proxy=http://HOST:PORT"
SOON = 30  # days before expiry at which a certificate deserves a warning


def examine_connection(config: JoinConfig) -> Iterator[Finding]:
    """Test the coordinator's name, port and certificate, and this site's key there."""
    way = list(_way(config.superlink))
    yield from way
    if any(finding.level == "error" for finding in way):
        return
    if config.insecure:
        yield Finding("warning", "TLS", "none, for tests on one machine only: name root-certificates and key instead")
        return
    tls = list(_tls(config, config.superlink.rpartition(":")[0]))
    yield from tls
    yield from _key(config, connects=all(finding.level != "error" for finding in tls))


def _way(address: str) -> Iterator[Finding]:
    """Try to reach the coordinator as gRPC does, by the environment's proxy if it applies."""
    host, _, port = address.rpartition(":")
    if (proxy := proxy_for(address)) is not None:
        try:
            _opened(address).close()
        except ProxyError as error:
            yield Finding("error", "proxy", str(error))
        else:
            yield Finding("ok", "proxy", f"{proxy} lets this machine through to {address}")
        return
    if unused := said_of(address):
        yield Finding("ok" if "excludes" in unused else "warning", "proxy", unused)
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        text = f"{host} cannot be resolved ({error.strerror}): check superlink, and this machine's DNS; {NEEDED}"
        yield Finding("error", "name", text)
        return
    yield Finding("ok", "name", f"{host} is {found[0][4][0]}")
    try:
        _opened(address).close()
    except OSError as error:
        text = f"{address} does not take connections ({error}): it is not running, or a firewall is in between; "
        yield Finding("error", "port", text + NEEDED)
        return
    yield Finding("ok", "port", f"{address} takes connections")


def _opened(address: str) -> socket.socket:
    """Open a connection to the coordinator, by the proxy that gRPC would use."""
    if (proxy := proxy_for(address)) is not None:
        return proxy.opened(address, SECONDS)
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), SECONDS)


def _tls(config: JoinConfig, host: str) -> Iterator[Finding]:
    from cryptography.x509 import load_der_x509_certificate

    try:
        pem = read_certificates(config.root_certificates)
    except ConfigError as error:
        yield Finding("error", "TLS", "; ".join(error.problems))
        return
    context = ssl.create_default_context(cadata=pem.decode("ascii", errors="replace"))
    context.set_alpn_protocols(["h2"])
    try:
        with _opened(config.superlink) as plain, context.wrap_socket(plain, server_hostname=host) as wrapped:
            certificate = load_der_x509_certificate(wrapped.getpeercert(binary_form=True) or b"")
    except ssl.SSLCertVerificationError as error:
        if "hostname" in error.verify_message.lower() or "ip address" in error.verify_message.lower():
            text = f"the coordinator's certificate is not for {host}: connect by a name in the certificate, or let the "
            yield Finding("error", "TLS", text + "coordinator issue another one")
        elif "expired" in error.verify_message:
            text = "the coordinator's certificate has expired: it must issue a new one, if the clock here is right"
            yield Finding("error", "TLS", text)
        elif "not yet valid" in error.verify_message:
            yield Finding("error", "clock", "the coordinator's certificate is not valid yet: set the clocks by NTP")
        else:
            text = f"the coordinator's certificate is not signed by {config.root_certificates} ({error.verify_message})"
            yield Finding("error", "TLS", f"{text}: get the ca.crt of this coordinator")
        return
    except ssl.SSLError as error:
        text = f"{config.superlink} does not speak TLS ({error.reason}): the port is wrong, or it is a coordinator for "
        yield Finding("error", "TLS", text + "tests, which takes insecure")
        return
    except OSError as error:
        yield Finding("error", "TLS", f"the connection was lost: {error}")
        return
    text = "the coordinator's certificate is signed by the authority and is for its name"
    yield _until(certificate, "TLS", text)


def _until(certificate: Certificate, about: str, text: str) -> Finding:
    days = (certificate.not_valid_after_utc - datetime.now(UTC)).days
    text = f"{text}, for {days} days more"
    if days < SOON:
        return Finding("warning", about, f"{text}: the coordinator must issue a new one")
    return Finding("ok", about, text)


def _key(config: JoinConfig, *, connects: bool) -> Iterator[Finding]:
    from cryptography.x509 import load_pem_x509_certificate

    if not config.key:
        yield Finding("error", "key", "none: set key to the file of this site's private key")
        return
    try:
        key = read_key(config.key)
        certificate = read_certificate(config.certificate, key)
    except ConfigError as error:
        yield Finding("error", "key", "; ".join(error.problems))
        return
    if Path(config.key).expanduser().stat().st_mode & 0o077:
        yield Finding("warning", "key", f"others on this machine can read {config.key}: chmod 600 {config.key}")
    if certificate:
        yield _until(load_pem_x509_certificate(certificate), "key", "this site's certificate is for its key")
    if not connects:
        return

    from edelweiss.client_app.connection_errors import CLOCKS
    from edelweiss.client_app.fleet import introduced
    from edelweiss.client_app.join import Acquainted

    known = Acquainted(config, key)()
    refusal = introduced(config.superlink, read_certificates(config.root_certificates), key, certificate, known=known)
    if refusal == CLOCKS:
        yield Finding("error", "clock", refusal)
        return
    if not refusal or "this site's key" in refusal:  # the coordinator checks the time of a call first
        yield Finding("ok", "clock", "in sync with the coordinator's, within its tolerance")
    if not refusal:
        yield Finding("ok", "key", "registered at the coordinator, not in use")
    elif known and "in use" in refusal:
        yield Finding("ok", "key", "registered at the coordinator and in use, by this site if it is running")
    else:
        yield Finding("error", "key", refusal)
