"""Chunks of new patients, so that a file may be larger than memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

BLOCK = 1024  # rows per evaluation step; chunks of whole blocks give the same bits
LONGEST = 2**24  # characters of a line


@dataclass(frozen=True)
class Chunk:
    """Some patients."""

    inputs: Tensor  # shape (n, F) float32, NaN where missing, or (n, C, H, W) uint8
    kept: list[list[str]]  # per patient, the values of the columns that are not features


def bounded(stream: io.TextIOWrapper) -> Iterator[str]:
    """Yield the lines of a file; raise ValueError for an overlong one."""
    while line := stream.readline(LONGEST):
        if len(line) == LONGEST:
            raise ValueError(f"a line has more than {LONGEST:,} characters")
        yield line
