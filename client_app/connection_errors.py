"""Explanations of connection errors in one line, with a fix."""

from __future__ import annotations

import re

import grpc  # type: ignore[import-untyped,unused-ignore]  # has no types

from edelweiss.client_app.proxy import proxy_for, said_of

CLOCKS = "the clocks of site and coordinator differ by more than a few seconds: set them by NTP"

FAILURES = (
    ("invalid timestamp", CLOCKS),
    (
        "certificate.?required|bad.?certificate|alert.?handshake",
        "the coordinator asks for this site's certificate: send it the public half of your key, and name the file that "
        "it sends back as certificate",
    ),
    (
        "different keys",
        "the coordinator does not let this site act for another one: certificate, key and registration must be of one "
        "key",
    ),
    ("certificate has expired", "the coordinator's certificate has expired: it must issue a new one"),
    (
        "certificate is not yet valid",
        "the coordinator's certificate is not valid yet: one of the two clocks is wrong, set them by NTP",
    ),
    (
        "wrong.?version.?number",
        "{address} answers without TLS: it is a coordinator for tests on one machine, which takes --insecure, or the "
        "port is wrong",
    ),
    (
        "hostname verification|peer name .* not in",
        "the coordinator's certificate is not for the name {host}: connect by a name in the certificate, or let the "
        "coordinator issue another one",
    ),
    (
        "certificate.?verify.?failed|self.?signed|unknown ca",
        "the coordinator's certificate was not signed by the "
        "authority in root-certificates: get the ca.crt of this coordinator",
    ),
    ("dns|name resolution|domain name", "the name {host} cannot be resolved: check superlink, and this machine's DNS"),
    ("connection refused", "nothing listens at {address}: the coordinator is not running yet, or the port is wrong"),
    ("timed? ?out|deadline|unreachable|no route", "{address} does not answer: a firewall may be in between"),
    (
        "socket closed|connection reset|broken pipe|goaway|handshak|recvmsg",
        "the coordinator closed the connection; if this persists, it asks for this site's certificate, which is not "
        "named as certificate, has expired or is another authority's; or one side uses TLS and the other does not",
    ),
)
"""Patterns of gRPC's error messages, with explanations; the first match counts."""


def why(error: Exception | None, address: str, *, refused: bool, known: bool) -> str:
    """Explain a failed connection in one line, with a fix.

    Parameters
    ----------
    error : Exception, optional
        The error of a call to the coordinator.
    address : str
        ``HOST:PORT`` from the site's operator.
    refused : bool
        Whether the coordinator replied that it does not accept this site at present.
    known : bool
        Whether it has accepted this site's key before.
    """
    if not isinstance(error, grpc.RpcError):
        return f"no connection to {address}: {error}"
    if refused:
        if known:
            return (
                "the coordinator believes that this site's key is in use, by another process or by one killed less "
                "than a minute ago; retrying. If this persists, the key may be unregistered"
            )
        return (
            "this site's key is not registered: give its public half to the coordinator, who registers it with 'flwr "
            "supernode register'; retrying"
        )
    details = str(error.details())
    if (proxy := proxy_for(address)) and (text := proxy.failed(f"{details} {error.code().name}", address)):
        return text
    for pattern, text in FAILURES:
        if re.search(pattern, details, re.IGNORECASE):
            unused = f" ({unused_proxy})" if (unused_proxy := said_of(address)) else ""
            return text.format(address=address, host=address.rpartition(":")[0]) + unused
    return f"no connection to {address}: {error.code().name}, {details}"
