"""A process beside `join`, such as that of the page: it is started again when it ends, and no run waits for it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

log = logging.getLogger("edelweiss")

AGAIN = 5.0  # seconds until one that ended is started again


@contextmanager
def kept(what: str, module: str, settings: str, *, ends: float) -> Iterator[None]:
    """Run ``python -m module`` through the block, with a line of settings as its input, which lasts as long.

    Parameters
    ----------
    what : str
        What it is called in the log.
    module : str
        Its name.
    settings : str
        One line.
    ends : float
        Seconds for which its end is waited for; 0: it ends by itself.
    """
    ended = threading.Event()
    process: list[subprocess.Popen[str]] = []

    def keep() -> None:
        while not ended.is_set():
            command = [sys.executable, "-m", module]
            try:
                process[:] = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)]
                stream = process[0].stdin
                assert stream is not None
                with suppress(OSError):
                    stream.write(settings + "\n")
                    stream.flush()
                code: object = process[0].wait()
            except OSError as error:
                code = error
            if not ended.is_set():
                log.warning("%s ended (%s); runs go on, and it is started again", what, code)
            ended.wait(AGAIN)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        for one in process:
            one.terminate()
            with suppress(subprocess.TimeoutExpired):
                one.wait(ends)
