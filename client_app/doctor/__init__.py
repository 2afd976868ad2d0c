"""Is all well at this site? Each thing that a site needs, tried with its real settings, and the fix for what fails."""

from __future__ import annotations

from collections.abc import Iterator

from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor.coordinator import examine_connection
from edelweiss.client_app.doctor.data import examine_data
from edelweiss.client_app.doctor.finding import Finding
from edelweiss.client_app.doctor.machine import examine_device, examine_state


def examine(config: JoinConfig) -> Iterator[Finding]:
    """Try one thing after the other; what depends on one that failed is left out."""
    from edelweiss.federation.fingerprint import fingerprint

    yield Finding("ok", "release", fingerprint())
    yield from examine_connection(config)
    yield from examine_state(config)
    yield from examine_device(config)
    yield from examine_data(config)
