"""Keys that must stay the same when a run is resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.common import LISTED, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edelweiss.common import Value
    from edelweiss.config.run import RunConfig

COMPUTED = {"data-root", "engine", "workers", "threads", "device", "checkpoint-every"}
LEFT = {"runs-dir", "run-name", "report", "tracker", "ticket", "started-by"}
GIVES_UP = {"wait-timeout", "round-timeout", "approval-timeout", "min-replies", "on-bad-update", "loss-bound"}
FREE = {"resume"} | COMPUTED | LEFT | GIVES_UP
"""Keys that may change when a run is resumed: computation, output, ticket, quorum and timeouts."""


def lasting(run: RunConfig) -> dict[str, Value]:
    """Return the keys of a run, with their values, that must stay the same when it is resumed."""
    return {key: value for key, value in run.written().items() if key not in FREE}


def changed(now: Mapping[str, Value], then: Mapping[str, Value]) -> str:
    """Return a line with the keys (of `lasting`) that changed since the run began; empty for none."""
    keys = [key for key in [*then, *(now.keys() - then.keys())] if now.get(key) != then.get(key)]
    lines = [
        f"{key} = {shown(now[key]) if key in now else 'none'} (was {shown(then[key]) if key in then else 'none'})"
        for key in keys[:LISTED]
    ]
    return ", ".join(lines) + (f" and {len(keys) - LISTED} more" if len(keys) > LISTED else "")
