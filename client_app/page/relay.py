"""A way to a page at a Unix socket: ``python -m edelweiss.client_app.page.relay HOST:PORT SOCKET``.

In a container `join` serves its page at a socket, because its network lets nobody in. Beside it a container that has
the socket and nothing else of the site runs this; its port is published at the machine's loopback interface only. It
passes bytes on: who may enter is the page's decision, and it sees the name in the browser's address bar.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

PART = 2**16  # bytes
MOST = 300  # connections at a time; of any more each is told so. The page has 400, and ends those that take long
SILENT = 10.0  # seconds for the first bytes: whoever sends none is not passed on
SLOWEST = 30.0  # seconds for a part to be taken
AWAY = "the site's page does not answer: page = 'unix:/page/page.sock' in its settings turns it on; its log says more\n"
FULL = "there are too many connections to the site's page at a time: try again in a minute\n"


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(PART):
        writer.write(part)
        async with asyncio.timeout(SLOWEST):  # who reads nothing is not waited for
            await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _refuse(writer: asyncio.StreamWriter, text: str) -> None:
    head = f"HTTP/1.1 503 Service Unavailable\r\ncontent-length: {len(text)}\r\nconnection: close\r\n"
    writer.write(f"{head}content-type: text/plain\r\n\r\n{text}".encode())
    await writer.drain()


async def _meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    async with asyncio.timeout(SILENT):
        if not (first := await reader.read(PART)):
            return
    try:
        page_reader, page = await asyncio.open_unix_connection(path)
    except OSError:
        await _refuse(writer, AWAY)
        return
    page.write(first)
    there, back = _pass_on(reader, page), _pass_on(page_reader, writer)
    done = [asyncio.create_task(there), asyncio.create_task(back)]
    try:
        await done[1]  # the page has answered, and ends it
    except TimeoutError:
        writer.transport.abort()  # closing it would wait for who reads nothing
        raise
    finally:
        done[0].cancel()
        page.close()


async def serve(host: str, port: int, path: str) -> None:
    """Pass on what comes, until the process ends.

    Raises
    ------
    OSError
        If the port cannot be opened.
    """
    here = 0

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal here
        here += 1
        try:
            with suppress(OSError):  # one side has gone, or said nothing
                await (_meet(reader, writer, path) if here <= MOST else _refuse(writer, FULL))
        finally:
            here -= 1
            writer.close()

    server = await asyncio.start_server(meet, host, port)
    async with server:
        await server.serve_forever()


def main() -> int:
    """Serve; return the exit code."""
    if len(sys.argv) != 3 or ":" not in sys.argv[1]:
        print("usage: python -m edelweiss.client_app.page.relay HOST:PORT SOCKET", file=sys.stderr)
        return 2
    host, _, port = sys.argv[1].rpartition(":")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(host, int(port), sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
