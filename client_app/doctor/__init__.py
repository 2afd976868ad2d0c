"""Tests of everything that a site needs, with its real settings, and fixes for what fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from edelweiss.client_app.connection import JoinConfig

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """The outcome of a test: its level, its subject, and a text with the fix."""

    level: Level
    about: str
    text: str


def examine(config: JoinConfig) -> Iterator[Finding]:
    """Run the tests in order, skipping those that depend on a failed one."""
    from edelweiss.client_app.doctor.coordinator import examine_connection
    from edelweiss.client_app.doctor.data import examine_data, examine_studies
    from edelweiss.client_app.doctor.machine import examine_device, examine_state
    from edelweiss.client_app.doctor.privacy import examine_privacy
    from edelweiss.client_app.doctor.records import examine_records
    from edelweiss.federation.fingerprint import fingerprint

    yield Finding("ok", "release", fingerprint())
    if config.superlink:
        yield from examine_connection(config)
    else:
        yield Finding("warning", "superlink", "none: the connection is not tested; name the coordinator to join")
    yield from examine_state(config)
    yield from examine_device(config)
    yield from examine_data(config)
    yield from examine_studies(config)
    yield examine_privacy(config)
    yield from examine_records(config)
