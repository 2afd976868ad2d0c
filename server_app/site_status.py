"""``sites.json`` in the run folder of a run at a SuperLink: what each site does now, for who looks on."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from edelweiss.federation.fingerprint import release
from edelweiss.models.storage import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edelweiss.federation import Site

FILE = "sites.json"
SELDOM = 0.5  # seconds after which it is written; at once if a site does something else than to answer


class SiteStatus:
    """The status of each site by its Flower node.

    ``sites.json`` has, by node: ``name``; ``state``, one of `federation.delivery.STATES`, and ``since`` (seconds since
    1970); ``reason``, why it refuses; ``answered``, the time of its last answer, and ``seconds``, which that took;
    ``release``, which it runs: the coordinator's if it answers, what it says if it refuses.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self.sites: dict[str, dict[str, Any]] = {}
        self._lock, self._later = threading.Lock(), False

    def noted(self, site: Site, state: str, said: Mapping[str, str]) -> None:
        """Note that a site's state is another; an unwritable file stops no run."""
        with self._lock:
            self._note(site, state, said)
            if state not in ("asked", "answered") or "name" in said:
                self._write()
            elif not self._later:
                self._later = True
                timer = threading.Timer(SELDOM, self._write_later)
                timer.daemon = True
                timer.start()

    def _note(self, site: Site, state: str, said: Mapping[str, str]) -> None:
        now, entry = time.time(), self.sites.setdefault(str(site.node_id), {})
        if entry.get("state") == "awaits approval" and state in ("asked", "awaits approval"):
            return  # asked again
        if state == entry.get("state") == "answered":  # it has only said its name since
            now = entry["since"]
        elif state == "answered":
            entry |= {"answered": now, "seconds": now - entry.get("since", now), "release": release()}
        elif state == "refused":
            entry["release"] = said.get("release", "")
        named = "" if site.name == f"node {site.node_id}" else site.name
        entry |= {"name": said.get("name") or named or entry.get("name", site.name), "state": state, "since": now}
        entry["reason"] = said.get("reason", "")

    def _write_later(self) -> None:
        with self._lock:
            self._later = False
            self._write()

    def _write(self) -> None:
        with suppress(OSError), atomic_writer(self.file) as file:
            file.write(json.dumps(self.sites).encode())
