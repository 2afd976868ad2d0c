"""What a run that was stopped and goes on has in common with its beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from config.run import RunConfig
    from keys import Value

COMPUTED = {"runs-dir", "run-name", "data-root", "engine", "workers", "threads", "device", "checkpoint-every", "report"}
GIVES_UP = {"wait-timeout", "round-timeout", "min-replies", "on-bad-update", "loss-bound"}
FREE = {"resume"} | COMPUTED | GIVES_UP
"""Keys that may change when a run goes on: where and how it is computed, whom it waits for, and when it gives up."""


def lasting(run: RunConfig) -> dict[str, Value]:
    """Return the keys of a run, with their values, that stay when it goes on."""
    return {key: value for key, value in run.written().items() if key not in FREE}
