"""What a run that was stopped and goes on has in common with its beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from config.run import RunConfig
    from keys import Value

COMPUTED = {"data-root", "engine", "workers", "threads", "device", "checkpoint-every"}
LEFT = {"runs-dir", "run-name", "report", "tracker"}
GIVES_UP = {"wait-timeout", "round-timeout", "min-replies", "on-bad-update", "loss-bound"}
FREE = {"resume"} | COMPUTED | LEFT | GIVES_UP
"""Keys that may change when a run goes on: how it is computed, what it leaves, whom it waits for, when it gives up."""


def lasting(run: RunConfig) -> dict[str, Value]:
    """Return the keys of a run, with their values, that stay when it goes on."""
    return {key: value for key, value in run.written().items() if key not in FREE}
