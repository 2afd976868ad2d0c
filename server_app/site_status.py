"""``sites.json`` in the run folder of a run at a SuperLink: what each site does now, for who looks on."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from edelweiss.models.storage import atomic_writer

if TYPE_CHECKING:
    from pathlib import Path

    from edelweiss.federation import Site

FILE = "sites.json"
SELDOM = 0.5  # seconds between writes, unless a site goes away or awaits approval


class SiteStatus:
    """The status of each site by its Flower node.

    ``sites.json`` has, by node: ``name``; ``state``, one of `federation.delivery.STATES`, and ``since`` (seconds since
    1970); ``answered``, the time of its last answer; ``seconds``, which that took.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self.sites: dict[str, dict[str, Any]] = {}
        self._written = 0.0

    def noted(self, site: Site, state: str, name: str = "") -> None:
        """Note that a site's state is another; an unwritable file stops no run."""
        now, node = time.time(), str(site.node_id)
        entry = self.sites.setdefault(node, {})
        if entry.get("state") == "awaits approval" and state in ("asked", "awaits approval"):
            return  # asked again
        if state == "answered":
            entry |= {"answered": now, "seconds": now - entry.get("since", now)}
        named = name or ("" if site.name == f"node {site.node_id}" else site.name) or entry.get("name", site.name)
        entry |= {"name": named, "state": state, "since": now}
        if state in ("away", "awaits approval") or now - self._written >= SELDOM:
            self._written = now
            with suppress(OSError), atomic_writer(self.file) as file:
                file.write(json.dumps(self.sites).encode())
