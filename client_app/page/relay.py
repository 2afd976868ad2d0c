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
MOST = 100  # connections at a time
SLOWEST = 30.0  # seconds for a part to be taken
AWAY = "the site's page does not answer: page = 'unix:/page/page.sock' in its settings turns it on; its log says more\n"


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(PART):
        writer.write(part)
        async with asyncio.timeout(SLOWEST):  # who reads nothing is not waited for
            await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def serve(host: str, port: int, path: str) -> None:
    """Pass on what comes, until the process ends.

    Raises
    ------
    OSError
        If the port cannot be opened.
    """
    free = asyncio.Semaphore(MOST)

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # one side has gone
            async with free:
                try:
                    page_reader, page = await asyncio.open_unix_connection(path)
                except OSError:
                    head = f"HTTP/1.1 503 Service Unavailable\r\ncontent-length: {len(AWAY)}\r\nconnection: close\r\n"
                    writer.write(f"{head}content-type: text/plain\r\n\r\n{AWAY}".encode())
                    await writer.drain()
                else:
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
