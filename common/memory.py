"""What memory there is, what needs more, and what becomes of memory that was freed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

RARELY = (100_000, 20, 20)  # new objects until the young ones are looked at, and how often that is until older ones are


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


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step or message, not return it to the kernel.

    Else each block beyond 32 MiB is mapped anew whenever it is needed, and the kernel clears page after page of it.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library manages its memory in its own way
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3
        libc.mallopt(mmap_threshold, 2**30)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 2**26)  # what a thread's own arena grows by, which the two above do not concern


def return_freed_memory() -> None:
    """Let glibc return to the kernel what lies free between what is still in use; it keeps that otherwise."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


_before: list[tuple[int, int, int]] = []  # the thresholds as they were, once for each who is within
_lock = threading.Lock()


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let Python's garbage collector seldom run, until the last who asked for that is done.

    What a site does leaves next to no cycles, and a look at all objects takes as long as hundreds of small sites.
    """
    with _lock:
        _before.append(_before[0] if _before else gc.get_threshold())
        gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                gc.set_threshold(*before)
