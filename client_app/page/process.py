"""The page's process: reads its settings from the first line of its input, and ends with it."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading

from edelweiss.common import ConfigError

SWITCH = 1e-4  # seconds


def main() -> int:
    """Serve the page; return the exit code."""
    from edelweiss.client_app.connection import JoinConfig
    from edelweiss.client_app.page.app import page_of
    from edelweiss.web import application, listen, serve, url_of

    # A request looks at hundreds of files and would wait 5 ms before each, while the audit log is verified in a thread.
    sys.setswitchinterval(SWITCH)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    log = logging.getLogger("edelweiss")
    log.setLevel(logging.INFO)
    with open(0, encoding="utf-8", closefd=False) as stream:
        config = JoinConfig.model_validate(json.loads(stream.readline()))

        def end_with_join() -> None:
            stream.read()
            os._exit(0)

        try:
            listening = listen(config.page)
        except ConfigError as error:
            log.error("%s", error)
            return 1
        threading.Thread(target=end_with_join, daemon=True).start()
        log.info("page: %s", url_of(config.page, listening))
        serve(application(page_of(config)), listening)
    return 0


if __name__ == "__main__":
    sys.exit(main())
