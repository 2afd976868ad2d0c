"""A small TCP proxy, for tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """A small TCP proxy that answers CONNECT with one line, and then passes on what comes; notes what it was asked."""

    def __init__(self, line: bytes) -> None:
        self.line, self.asked = line, list[bytes]()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.server.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            asked = client.recv(4096)
            self.asked.append(asked)
            client.sendall(self.line + b"\r\n\r\n")
            if b" 200" not in self.line:
                return
            host, _, port = asked.split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as there:
                back = threading.Thread(target=_pass_on, args=(there, client), daemon=True)
                back.start()
                _pass_on(client, there)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(line: bytes = b"HTTP/1.1 403 Forbidden") -> Iterator[Proxy]:
    """Run a proxy."""
    running = Proxy(line)
    yield running
    running.server.close()
