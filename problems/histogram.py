"""Counts of scores on a grid that is the same for everybody: each number of 32 bits is a bin of its own.

Nobody chooses the grid, so nobody has to be told of it, and counts of any two sites add up. It resolves whatever a
float32 does: scores of any scale, far from 0 or near. Samples of one bin have the same score, so they are ties by
definition, and no others are. Few of the bins are occupied; these are told, in ascending order, with their counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LARGEST = float(np.finfo(np.float32).max)
LAST = int(np.array(LARGEST, np.float32).view(np.int32))  # the bin of the largest number; the lowest is -LAST
ENTRY = 8  # bytes of a bin with its count


def bins_of(scores: Floats) -> Ints:
    """Return the bin of each score, an integer in the order of the scores: a float32's bits, but for its sign.

    Infinity is in the bin of the largest number. NaN, of a model that has diverged, is in that of 0, to be counted.
    """
    finite = np.nan_to_num(np.asarray(scores, np.float64), nan=0.0, posinf=LARGEST, neginf=-LARGEST)
    bits = np.clip(finite, -LARGEST, LARGEST).astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def scores_of(bins: Ints) -> Floats:
    """Return the score that a bin stands for."""
    magnitudes = np.abs(bins).astype(np.int32).view(np.float32).astype(np.float64)
    return np.where(bins < 0, -magnitudes, magnitudes)


@dataclass(frozen=True, eq=False)
class Histogram:
    """The occupied bins, ascending, and how many samples are in each; both of shape (occupied,)."""

    bins: Ints
    counts: Ints

    @classmethod
    def of(cls, scores: Floats) -> Histogram:
        """Count scores."""
        return cls(*np.unique(bins_of(scores), return_counts=True))

    @classmethod
    def total(cls, parts: Sequence[Histogram]) -> Histogram:
        """Add up histograms."""
        if not parts:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        bins, place = np.unique(np.concatenate([part.bins for part in parts]), return_inverse=True)
        counts = np.zeros(len(bins), np.int64)
        np.add.at(counts, place, np.concatenate([part.counts for part in parts]))
        return cls(bins, counts)

    def at_least(self, fewest: int) -> bool:
        """Whether no bin has fewer."""
        return bool((self.counts >= fewest).all())

    def packed(self) -> bytes:
        """Write it as a message has it: the bins, then the counts, each in 32 bits, the least significant byte first.

        ``float`` and ``int`` in a list cost Flower a check each.
        """
        return self.bins.astype("<i4").tobytes() + self.counts.astype("<u4").tobytes()

    @classmethod
    def unpacked(cls, told: bytes) -> Histogram:
        """Read what `packed` wrote, in which `wrong` found nothing."""
        many = len(told) // ENTRY
        bins, counts = np.frombuffer(told, "<i4", many), np.frombuffer(told, "<u4", many, offset=4 * many)
        return cls(bins.astype(np.int64), counts.astype(np.int64))


def wrong(told: bytes, count: int | None = None) -> str:
    """Return what is wrong with a histogram as it came in a message, of so many samples; empty for nothing."""
    if len(told) % ENTRY or (count is not None and len(told) > ENTRY * count):
        return f"{len(told)} bytes: must be {ENTRY} for each bin" + f", of at most {count}" * (count is not None)
    found = Histogram.unpacked(told)
    if (np.abs(found.bins) > LAST).any() or (np.diff(found.bins) <= 0).any():
        return "its bins are no finite numbers that ascend"
    if not found.at_least(1):
        return "a bin that it tells of is empty"
    total = int(found.counts.sum())
    return "" if count in (None, total) else f"its counts add up to {total}: it has {count}"
