"""The number of processors that this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Return their number, at most those of the process's CPU affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
