"""Why a site has no connection to its coordinator, in one line, with what mends it."""

from __future__ import annotations

import re

import grpc  # type: ignore[import-untyped,unused-ignore]  # has no types

from edelweiss.client_app.proxy import proxy_for, said_of

CLOCKS = "the clocks of site and coordinator differ by more than a few seconds: set them by NTP"

FAILURES = (
    ("invalid timestamp", CLOCKS),
    ("certificate has expired", "the coordinator's certificate has expired: it must issue a new one"),
    (
        "certificate is not yet valid",
        "the coordinator's certificate is not valid yet: one of the two clocks is wrong, set them by NTP",
    ),
    (
        "wrong.?version.?number",
        "{address} answers without TLS: a coordinator that does is for tests on one machine "
        "only, with --insecure; else the port is wrong",
    ),
    (
        "hostname verification|peer name .* not in",
        "the coordinator's certificate is not for the name {host}: connect "
        "by a name that is in it, or let the coordinator issue another one",
    ),
    (
        "certificate.?verify.?failed|self.?signed|unknown ca",
        "the coordinator's certificate was not signed by the "
        "authority in root-certificates: get the ca.crt of this coordinator",
    ),
    ("dns|name resolution|domain name", "the name {host} cannot be resolved: check superlink, and this machine's DNS"),
    ("connection refused", "nobody listens at {address}: the coordinator is not running yet, or the port is wrong"),
    ("timed? ?out|deadline|unreachable|no route", "{address} does not answer: a firewall may be in between"),
    (
        "socket closed|connection reset|broken pipe|goaway|handshak|recvmsg",
        "the coordinator ended the connection; if it stays so, one side uses TLS and the other does not",
    ),
)
"""What gRPC says of a connection that fails, as a pattern, and what we say; the first that fits counts."""


def why(error: Exception | None, address: str, *, refused: bool, known: bool) -> str:
    """Say in one line why a connection failed, and what mends it.

    Parameters
    ----------
    error : Exception, optional
        What a call to the coordinator failed with.
    address : str
        ``HOST:PORT``, as the site's operator gave it.
    refused : bool
        Whether the coordinator answered, and said that it does not accept this site at present.
    known : bool
        Whether it has accepted this site's key before.
    """
    if not isinstance(error, grpc.RpcError):
        return f"no connection to {address}: {error}"
    if refused:
        if known:
            return (
                "the coordinator takes this site's key to be in use, by another process or by one that was killed "
                "less than a minute ago; trying on. If it stays so, the key may be unregistered"
            )
        return (
            "this site's key is not registered: give its public half to the coordinator, who enters it with "
            "'flwr supernode register'; trying on"
        )
    details = str(error.details())
    if (proxy := proxy_for(address)) and (text := proxy.failed(f"{details} {error.code().name}", address)):
        return text
    for pattern, text in FAILURES:
        if re.search(pattern, details, re.IGNORECASE):
            unused = f" ({said})" if (said := said_of(address)) else ""
            return text.format(address=address, host=address.rpartition(":")[0]) + unused
    return f"no connection to {address}: {error.code().name}, {details}"
