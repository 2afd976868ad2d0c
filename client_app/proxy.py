"""The proxy that gRPC uses between a site and its coordinator, according to the environment.

gRPC takes the first of ``grpc_proxy``, ``https_proxy`` and ``http_proxy`` that is set, in lower case only; it must be
``http://HOST:PORT``, and anything else is silently ignored. ``no_grpc_proxy``, or else ``no_proxy``, lists suffixes of
host names and networks (``10.0.0.0/8``) that are reached directly; ``*`` is not supported.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ("grpc_proxy", "https_proxy", "http_proxy")
EXCLUDED = ("no_grpc_proxy", "no_proxy")
OTHERS = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "all_proxy", "GRPC_PROXY")  # used by other programs
LONGEST = 2**16  # most bytes of a proxy's reply


class ProxyError(OSError):
    """A proxy blocks the connection; the text says why, with a fix."""


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy."""

    variable: str  # the environment variable that names it
    host: str
    port: int
    login: str = ""  # `USER:PASSWORD`, empty for none; never shown

    def __str__(self) -> str:
        return f"{self.host}:{self.port} ({self.variable})"

    def failed(self, why: str, address: str) -> str:
        """Explain an error of gRPC or a socket in one line; empty if it is not the proxy's."""
        host, why = address.rpartition(":")[0], why.lower()
        mend = f"correct {self.variable}, or, if {host} is reached without, add it to no_proxy"
        if re.search(r"\b407\b", why):  # a port may have these digits
            return (
                f"the proxy {self} wants a name and a password, or others: write them into it, "
                f"{self.variable}=http://NAME:PASSWORD@{self.host}:{self.port}"
            )
        if "response code" in why:
            code = why.rpartition("response code")[2].split()[0]
            reach = ", or does not reach the coordinator" if code in ("502", "503", "504") else ""
            return (
                f"the proxy {self} answers {code}: it does not let this machine through to {address}{reach}; ask "
                f"whoever runs it to allow CONNECT to {address}, or, if {host} is reached without, add it to "
                "no_proxy"
            )
        if "expected 'h'" in why or "no http" in why:
            return f"{self} is not an HTTP proxy: {mend}"
        if "resol" in why or "domain name" in why or "name or service" in why:
            return f"the name of the proxy {self} cannot be resolved: {mend}"
        if "refused" in why:
            return f"nothing listens at the proxy {self}: {mend}"
        if any(word in why for word in ("timed out", "timeout", "deadline", "unreachable", "no route")):
            return f"no reply through the proxy {self}: it is down, or does not reach {address}; {mend}"
        return ""

    def opened(self, address: str, seconds: float) -> socket.socket:
        """Return a connection through it.

        Raises
        ------
        ProxyError
            When there is none.
        """
        login = f"Proxy-Authorization: Basic {b64encode(self.login.encode()).decode()}\r\n" if self.login else ""
        asked = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{login}\r\n"
        try:
            line = socket.create_connection((self.host, self.port), seconds)
            try:
                line.sendall(asked.encode())
                response = b""
                while b"\r\n\r\n" not in response and len(response) < LONGEST and (more := line.recv(1)):
                    response += more
                version, _, rest = response.partition(b" ")
                if not version.startswith(b"HTTP/"):
                    raise OSError("no HTTP")
                if not rest.startswith(b"2"):
                    raise OSError(f"response code {rest[:3].decode('ascii', 'replace')}")
            except OSError:
                line.close()
                raise
        except OSError as error:
            text = self.failed(str(error), address) or f"the proxy {self} ended the connection ({error})"
            raise ProxyError(text) from None
        return line


def proxy_for(address: str, environment: Mapping[str, str] | None = None) -> Proxy | None:
    """Return the proxy that gRPC uses for ``HOST:PORT``; None for a direct connection."""
    environment = os.environ if environment is None else environment
    named = _named(environment)
    host = address.rpartition(":")[0].strip("[]")
    return None if named is None or _excluded(host, environment) else named


def said_of(address: str, environment: Mapping[str, str] | None = None) -> str:
    """Explain why a proxy of the environment is not used for an address; empty if there is none."""
    environment = os.environ if environment is None else environment
    host = address.rpartition(":")[0]
    if (named := _named(environment)) is not None:
        listed = next(name for name in (*EXCLUDED, "") if not name or environment.get(name))
        return "" if proxy_for(address, environment) else f"{named} is not used: {listed} excludes {host}"
    if wrong := [name for name in NAMES if environment.get(name)][:1]:
        return f"{wrong[0]} is not used: it must be http://HOST:PORT, whatever the connection is"
    if others := [name for name in OTHERS if environment.get(name)]:
        return f"{others[0]} is not used: write it as https_proxy, in small letters, if the coordinator needs a proxy"
    return ""


def _named(environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that the environment names."""
    name = next((name for name in NAMES if environment.get(name)), "")
    try:
        parts = urlsplit(environment.get(name, ""))
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        return None
    if parts.scheme != "http" or not host:
        return None
    return Proxy(name, host, port, unquote(parts.netloc.rpartition("@")[0]))


def _excluded(host: str, environment: Mapping[str, str]) -> bool:
    """Whether the environment says that a host is reached directly."""
    listed = next((environment[name] for name in EXCLUDED if environment.get(name)), "")
    for entry in filter(None, map(str.strip, listed.split(","))):
        if host.lower().endswith(entry.lower()):
            return True
        try:
            if "/" in entry and ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False
