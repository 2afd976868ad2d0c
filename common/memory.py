"""Free memory, and the use of freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

RARELY = (100_000, 20, 20)  # thresholds of the three generations of the garbage collector


def free_memory() -> int:
    """Return the bytes available without swapping, in this machine and in the groups of its processes' limits."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = 1024 * int(line.split()[1])
    return min([free, *(limit - used for limit, used in _groups())])


def memory_limit() -> int:
    """Return the bytes that this process may have: all of the machine's, or the smallest limit of its groups."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *(limit for limit, _ in _groups())])


_CGROUP, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_FILES = {  # limit, use, and what of the use is a cache of files that the kernel gives up
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def _groups() -> Iterator[tuple[int, int]]:
    """Yield limit and use of this process's control group and of those around it, of version 1 and 2.

    In a container its own group may be mounted as the outermost, under another name than the process has: a folder that
    is not there is passed over.
    """
    try:
        lines = _OWN.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        version = next((name for name in controllers.split(",") if name in _FILES), None)
        if version is None:
            continue
        limit, use, cache = _FILES[version]
        inner = _CGROUP / version / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if not folder.is_relative_to(_CGROUP / version):
                break
            with contextlib.suppress(OSError, ValueError):  # not there, or "max" where there is no limit
                most, used = (int((folder / name).read_text(encoding="ascii")) for name in (limit, use))
                said = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
                yield most, max(0, used - int(said.get(cache, 0)))


def shortage(need: int, what: str, mend: str) -> str:
    """Return a message if something needs more memory than is free; else an empty one."""
    free = free_memory()
    if need <= free:
        return ""
    return f"{what} takes {need / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free: {mend}"


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step or message, not return it to the kernel.

    Else each block above 32 MiB is mapped again at every use, and the kernel clears all of its pages.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3
        libc.mallopt(mmap_threshold, 2**30)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 2**26)  # growth of a thread's arena, independent of these two


def return_freed_memory() -> None:
    """Let glibc return free memory between used blocks to the kernel, which it would keep."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


_before: list[tuple[int, int, int]] = []  # the original thresholds, once for each open context
_lock = threading.Lock()


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let Python's garbage collector run rarely until the last of these contexts is closed.

    A site leaves almost no cycles, and a full collection takes as long as hundreds of small sites.
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
