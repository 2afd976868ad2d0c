"""The process that tells: reads its settings from the first line of its input, and ends with `join`."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from edelweiss.client_app.notify.post import Post
from edelweiss.client_app.notify.watch import Watch
from edelweiss.client_app.notify.ways import ways_in
from edelweiss.common.files import locked

PAUSE = 2.0  # seconds between two looks
COURTESY = 10  # of the priorities' 20: a run comes first


def main() -> int:
    """Look and tell until told to end; return the exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    os.nice(COURTESY)
    with open(0, encoding="utf-8", closefd=False) as stream:
        settings = json.loads(stream.readline())

        def end_with_join() -> None:
            stream.read()
            ended.set()

        threading.Thread(target=end_with_join, daemon=True).start()
        state = Path(settings["state-dir"]).expanduser()
        with locked(state / "notify" / "lock"):  # the one before may still be telling
            post = Post(state / "notify" / "told.json", settings["site"], ways_in(settings))
            watch = Watch(settings, state, post.seen)
            while not ended.is_set():
                notices = watch.look()
                post.add(notices, watch.seen)
                post.tell(ended.is_set)
                ended.wait(PAUSE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
