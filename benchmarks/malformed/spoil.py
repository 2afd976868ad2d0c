"""What can be wrong with a file, with its bytes, and with a record of named values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

Spoil = tuple[str, Callable[[Path], None]]

OTHERS: tuple[Any, ...] = (None, "x", "", -1, 0, 2.5, math.nan, math.inf, 1e300, True, [], [1.0], ["x"], {}, {"a": 1})


def in_its_place(rng: Random) -> Iterator[Spoil]:
    """Yield what may lie where a file should."""
    yield "is a folder", lambda file: (file.unlink(), file.mkdir())[0]
    yield "is a pipe", lambda file: (file.unlink(), os.mkfifo(file))[0]
    yield "is a device without end", lambda file: _link(file, "/dev/zero")
    yield "is a link to itself", lambda file: _link(file, file.name)
    yield "is a link to nothing", lambda file: _link(file, "nowhere")
    yield "has a terabyte", lambda file: os.truncate(file, 10**12)
    yield "is empty", lambda file: _write(file, b"")
    yield "begins with a header of 2^40 bytes", lambda file: _write(file, (2**40).to_bytes(8, "little") + b"{}")
    for size in (1, 7, 100, 5000):
        yield f"is {size} random bytes", lambda file, size=size: _write(file, rng.randbytes(size))  # type: ignore[misc]
    yield from cuts(rng)


def cuts(rng: Random, count: int = 12) -> Iterator[Spoil]:
    """Yield what an interrupted copy leaves."""
    for share in sorted(rng.random() for _ in range(count)):
        yield f"is cut at {share:.1%}", lambda file, s=share: os.truncate(file, int(s * file.stat().st_size))  # type: ignore[misc]


def flips(rng: Random, count: int = 12) -> Iterator[Spoil]:
    """Yield a byte that is another one."""
    for _ in range(count):
        where, change = rng.random(), rng.randrange(1, 256)
        yield f"has another byte at {where:.1%}", lambda file, w=where, c=change: _flip(file, w, c)  # type: ignore[misc]


def values(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any, Any]]:
    """Yield a record with one entry missing or another: what was done, the record, what was there, and what is now."""
    for key, value in record.items():
        yield f"lacks {key}", {k: v for k, v in record.items() if k != key}, value, None
        for other in OTHERS:
            if repr(other) != repr(value):
                yield f"has {key} = {other!r}", record | {key: other}, value, other
        if isinstance(value, list) and value:
            for other in (value[1:], [*value, value[0]], [*value[1:], "x"], [*value[1:], math.nan]):
                yield f"has {key} = {other!r}"[:80], record | {key: other}, value, other


def _link(file: Path, target: str) -> None:
    file.unlink()
    file.symlink_to(target)


def _write(file: Path, data: bytes) -> None:
    file.write_bytes(data)


def _flip(file: Path, where: float, change: int) -> None:
    data = bytearray(file.read_bytes())
    data[int(where * len(data))] ^= change
    file.write_bytes(bytes(data))
