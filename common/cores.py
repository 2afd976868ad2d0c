"""How many processors this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Return how many; fewer than the machine has where somebody has given this process some of them only."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
