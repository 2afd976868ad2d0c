"""The way to a page at a Unix socket, as in a container: it passes on bytes, and the page decides who may enter."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from bin.run import REPO, free_port
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.page import relay
from edelweiss.client_app.page.beside import page_beside

pytestmark = pytest.mark.slow


@contextmanager
def relayed(path: Path) -> Iterator[str]:
    """Relay to a socket through the block; yields the address."""
    port = free_port()
    command = [sys.executable, "-m", "edelweiss.client_app.page.relay", f"127.0.0.1:{port}", str(path)]
    with subprocess.Popen(command, cwd=REPO) as process:
        try:
            for _ in range(6000):
                with socket.socket() as probe:
                    if not probe.connect_ex(("127.0.0.1", port)):
                        break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=600)


def test_who_reads_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a hundred of these would be all that it passes on, for ever."""
    monkeypatch.setattr(relay, "SLOWEST", 0.5)

    async def tried(path: str) -> None:
        hung_up = asyncio.Event()

        async def talkative(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while True:
                    writer.write(bytes(2**16))
                    await writer.drain()
            hung_up.set()

        port = free_port()
        async with await asyncio.start_unix_server(talkative, path):
            serving = asyncio.create_task(relay.serve("127.0.0.1", port, path))
            await asyncio.sleep(0.5)
            with socket.create_connection(("127.0.0.1", port)) as deaf:
                deaf.sendall(b"GET")
                await asyncio.wait_for(hung_up.wait(), 600)
            serving.cancel()

    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        asyncio.run(tried(f"{place}/page.sock"))


def test_the_silent_hold_nobody_up_and_no_more_are_let_in_than_it_can_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the page would ever end: the relay takes only who says something, and refuses beyond its number."""

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline():
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await reader.read()
        writer.close()

    async def said(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        answer = await asyncio.wait_for(reader.readline(), 600)
        writer.close()
        return answer

    async def tried(path: str) -> None:
        port = free_port()
        async with await asyncio.start_unix_server(page, path):
            serving = asyncio.create_task(relay.serve("127.0.0.1", port, path))
            await asyncio.sleep(0.5)
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
            assert b" 200 " in await said(port)
            silent += [await asyncio.open_connection("127.0.0.1", port) for _ in range(relay.MOST - 200)]
            assert b" 503 " in await said(port)
            for reader, writer in silent:
                assert await asyncio.wait_for(reader.read(), 600) == b"", "it hangs up"
                writer.close()
            assert b" 200 " in await said(port)
            serving.cancel()

    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        asyncio.run(tried(f"{place}/page.sock"))


def test_a_page_at_a_socket_is_reached_under_its_own_names_only(tmp_path: Path) -> None:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))  # a socket's path is short
        url = stack.enter_context(relayed(place / "page.sock"))
        assert httpx.get(f"{url}/healthz", timeout=600).status_code == 503, "it is not there yet"
        options = {"superlink": "a:1", "insecure": True, "state-dir": str(tmp_path), "page": f"unix:{place}/page.sock"}
        stack.enter_context(page_beside(JoinConfig.read("", {**options})))
        for _ in range(6000):
            if httpx.get(f"{url}/healthz", timeout=600).is_success:
                break
            time.sleep(0.1)
        with httpx.Client(base_url=url, timeout=600) as client:
            assert client.get("/login").status_code == 200
            assert client.get("/login").status_code == 200, "the same connection"
            for host in ("evil.example", "evil.example:8470", "page-a", "127.0.0.1.evil.example", ""):
                assert client.get("/login", headers={"host": host}).status_code in (400, 403), host
            large = client.post("/login", content=b"x" * 3_000_000)
            assert large.status_code in (403, 413)
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))) for _ in range(30)
        ]
        assert httpx.get(f"{url}/healthz", timeout=600).is_success, "those who say nothing hold nobody up"
        for one in idle:
            one.close()
        assert (place / "page.sock").stat().st_mode & 0o077 == 0
