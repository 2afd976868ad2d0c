"""Where a page is answered: a port of the loopback interface, or a Unix socket."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common import ConfigError, shown
from edelweiss.common.files import reason

if TYPE_CHECKING:
    import asyncio

    import uvicorn
    from starlette.types import ASGIApp

UNIX = "unix:"
ENDING = 2  # seconds that open requests have when the program ends
HEAD = 10.0  # seconds for the head of a request
LONGEST = 2**16  # bytes of it
MOST = 400  # connections at a time; of any more requests each is told so
FORMS = "must be 127.0.0.1:PORT, 0 for any free port, or unix:PATH"


def address_of(text: str) -> str:
    """Return an address if a page may be answered there; empty stands for none.

    Only a container may answer at all its addresses (``0.0.0.0``): what its network lets in is its own decision.

    Raises
    ------
    ValueError
        With what is allowed.
    """
    if not text:
        return text
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        if not path.startswith("/") or len(os.fsencode(path)) > 100 or "\0" in path:
            raise ValueError("must be unix: and an absolute path of at most 100 bytes")
        return text
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 2**16):
        raise ValueError(FORMS)
    name = host.strip("[]")
    try:
        loopback = name == "localhost" or ipaddress.ip_address(name).is_loopback
        everywhere = name != "localhost" and ipaddress.ip_address(name).is_unspecified
    except ValueError:
        raise ValueError(FORMS) from None
    if not loopback and not (everywhere and in_container()):
        raise ValueError(f"{FORMS}; from elsewhere reach it through SSH, as in ssh -L 8470:127.0.0.1:8470 HOST")
    return text


def in_container() -> bool:
    """Whether this process runs in a container, whose addresses are not the machine's."""
    return Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()


def listen(address: str) -> socket.socket:
    """Open a socket at an address of `address_of`.

    Raises
    ------
    ConfigError
        If that is not possible.
    """
    try:
        if address.startswith(UNIX):
            path = Path(address.removeprefix(UNIX))
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(path.lstat().st_mode):
                    raise OSError(f"{path} is there, and no socket")
                path.unlink()
            found = socket.socket(socket.AF_UNIX)
            before = os.umask(0o177)
            try:
                found.bind(str(path))
            finally:
                os.umask(before)
        else:
            host, _, port = address.rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            found = socket.socket(family)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host.strip("[]"), int(port)))
        found.listen(64)
    except OSError as error:
        mend = "name another port, or end what listens there"
        raise ConfigError("page", [f"page = {shown(address)} cannot be opened: {reason(error)}; {mend}"]) from None
    return found


def url_of(address: str, listening: socket.socket) -> str:
    """Return where a browser, or ``curl --unix-socket``, finds a page."""
    if address.startswith(UNIX):
        return address
    host = address.rpartition(":")[0]
    host = "127.0.0.1" if host in ("0.0.0.0", "localhost") else "[::1]" if host == "[::]" else host
    return f"http://{host}:{listening.getsockname()[1]}/"


def server_of(app: ASGIApp) -> uvicorn.Server:
    """Return what answers at a socket: ``run(sockets=[...])``."""
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Whole(h11.Connection):
        """Reads no body in chunks: each takes time, a byte each, say, and the page refuses such a request."""

        _chunked = False

        def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
            if self._chunked:
                return h11.NEED_DATA
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            return event

    class Impatient(H11Protocol):
        """Closes a connection whose next request does not come: else those who say nothing would take all of them."""

        _late: asyncio.TimerHandle | None = None

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.conn = Whole(h11.SERVER, LONGEST)

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop_waiting()

        def _await_head(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:  # a whole head has come
                self._stop_waiting()
            elif self._late is None:
                self._late = self.loop.call_later(HEAD, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    config = uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=ENDING,
        limit_concurrency=MOST,
    )
    return uvicorn.Server(config)


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Answer until SIGTERM or Ctrl-C, or until the process ends."""
    server_of(app).run(sockets=[listening])
