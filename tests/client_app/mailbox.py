"""Real servers of this machine that are told something: a webhook's and a mail server's, well or badly behaved."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DRIP = 0.05  # seconds between two bytes of a slow answer


@dataclass
class Hook:
    """A webhook: what it was sent, and how it answers."""

    posts: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    status: int = 200
    location: str = ""  # where it sends others
    drips: bool = False  # whether its answer comes byte by byte, without an end
    url: str = ""


@contextmanager
def hook(**how: Any) -> Iterator[Hook]:
    """Serve a webhook through the block."""
    found, ended = Hook(**how), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.posts.append(json.loads(body))
            found.tokens.append(self.headers["authorization"])
            while found.drips and not ended.wait(DRIP):
                self.wfile.write(b"H")
                self.wfile.flush()
            self.send_response(found.status)
            if found.location:
                self.send_header("location", found.location)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815 -- the library's name

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def handle(self) -> None:
            with suppress(OSError):  # who asks has gone
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


@dataclass
class Mailbox:
    """A mail server: what it has taken, and how it answers."""

    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # commands, as they came
    secure: list[bool] = field(default_factory=list)  # of each mail: whether it came by TLS
    refuses: bool = False
    silent: bool = False  # whether it accepts a connection and says nothing
    certificate: tuple[Path, Path] | None = None  # with its key; None: no TLS
    address: str = ""


@contextmanager
def mailbox(**how: Any) -> Iterator[Mailbox]:
    """Serve mail through the block."""
    box, ready = Mailbox(**how), threading.Event()
    loop = asyncio.new_event_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if box.silent:
            with suppress(asyncio.CancelledError):
                await reader.read()
            return
        secure = False

        async def say(text: str) -> None:
            writer.write(f"{text}\r\n".encode())
            await writer.drain()

        await say("220 here")
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            box.lines.append(line)
            word = line.split()[0].upper()
            if word == "EHLO":
                own = "250-STARTTLS\r\n" if box.certificate and not secure else ""
                await say(f"250-here\r\n{own}250 AUTH PLAIN")
            elif word == "STARTTLS" and box.certificate:
                await say("220 go")
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                context.load_cert_chain(*box.certificate)
                await writer.start_tls(context)
                secure = True
            elif word == "AUTH":
                await say("235 welcome")
            elif word == "RCPT":
                box.recipients.append(line)
                await say("550 nobody here" if box.refuses else "250 well")
            elif word == "DATA":
                await say("354 go on")
                text = (await reader.readuntil(b"\r\n.\r\n")).removesuffix(b"\r\n.\r\n")
                box.mails.append(message_from_bytes(text, policy=policy.default))
                box.secure.append(secure)
                await say("250 taken")
            elif word == "QUIT":
                break
            else:
                await say("250 well")
        writer.close()

    async def begin() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        box.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(begin())
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield box
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
