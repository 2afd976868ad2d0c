"""Tests of everything that a site needs, with its real settings, and fixes for what fails."""

from __future__ import annotations

from collections.abc import Iterator

from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor.coordinator import examine_connection
from edelweiss.client_app.doctor.data import examine_data
from edelweiss.client_app.doctor.finding import Finding
from edelweiss.client_app.doctor.machine import examine_device, examine_state


def examine(config: JoinConfig) -> Iterator[Finding]:
    """Run the tests in order, skipping those that depend on a failed one."""
    from edelweiss.federation.fingerprint import fingerprint

    yield Finding("ok", "release", fingerprint())
    yield from examine_connection(config)
    yield from examine_state(config)
    yield from examine_device(config)
    yield from examine_data(config)
