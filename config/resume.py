"""What a run that was stopped and goes on has in common with its beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.common import LISTED, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edelweiss.common import Value
    from edelweiss.config.run import RunConfig

COMPUTED = {"data-root", "engine", "workers", "threads", "device", "checkpoint-every"}
LEFT = {"runs-dir", "run-name", "report", "tracker"}
GIVES_UP = {"wait-timeout", "round-timeout", "min-replies", "on-bad-update", "loss-bound"}
FREE = {"resume"} | COMPUTED | LEFT | GIVES_UP
"""Keys that may change when a run goes on: how it is computed, what it leaves, whom it waits for, when it gives up."""


def lasting(run: RunConfig) -> dict[str, Value]:
    """Return the keys of a run, with their values, that stay when it goes on."""
    return {key: value for key, value in run.written().items() if key not in FREE}


def changed(now: Mapping[str, Value], then: Mapping[str, Value]) -> str:
    """Say in a line which keys of a run differ from those that it began with; empty for none.

    Parameters
    ----------
    now, then : mapping
        What `lasting` returns: of the run-config that it is to go on with, and of the one that it began with.
    """
    keys = [key for key in [*then, *(now.keys() - then.keys())] if now.get(key) != then.get(key)]
    told = [
        f"{key} = {shown(now[key]) if key in now else 'none'} (was {shown(then[key]) if key in then else 'none'})"
        for key in keys[:LISTED]
    ]
    return ", ".join(told) + (f" and {len(keys) - LISTED} more" if len(keys) > LISTED else "")
