"""What memory there is, and what needs more."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def free_memory() -> int:
    """Bytes that can be had without swapping; where the system does not say, all of the machine's."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = 1024 * int(line.split()[1])
    with contextlib.suppress(OSError, ValueError):  # "max", where a container has no bound of its own
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return free


def shortage(need: int, what: str, mend: str) -> str:
    """Say that something takes more memory than there is; empty where it does not."""
    free = free_memory()
    if need <= free:
        return ""
    return f"{what} takes {need / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free: {mend}"
