"""Histograms of scores on a universal grid: each float32 number is its own bin.

The grid needs no negotiation, and the counts of any two sites can be added. It has the resolution of float32, for
scores of any scale. Samples in one bin are ties. Only the occupied bins are stored, in ascending order, with
their counts.
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
LAST = int(np.array(LARGEST, np.float32).view(np.int32))  # the highest bin; the lowest is -LAST
ENTRY = 8  # bytes per bin and count


def bins_of(scores: Floats) -> Ints:
    """Return the bin of each score: the bits of its float32 as an integer in the order of the scores.

    Infinity falls into the bin of the largest number, NaN (from a diverged model) into that of 0.
    """
    finite = np.nan_to_num(np.asarray(scores, np.float64), nan=0.0, posinf=LARGEST, neginf=-LARGEST)
    bits = np.clip(finite, -LARGEST, LARGEST).astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def scores_of(bins: Ints) -> Floats:
    """Return the score of each bin."""
    magnitudes = np.abs(bins).astype(np.int32).view(np.float32).astype(np.float64)
    return np.where(bins < 0, -magnitudes, magnitudes)


@dataclass(frozen=True, eq=False)
class Histogram:
    """The occupied bins, ascending, and their counts; both of shape (occupied,)."""

    bins: Ints
    counts: Ints

    @classmethod
    def of(cls, scores: Floats) -> Histogram:
        """Count scores by bin."""
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
        """Whether every bin has at least ``fewest`` samples."""
        return bool((self.counts >= fewest).all())

    def packed(self) -> bytes:
        """Serialise as the bins followed by the counts, each in 32 bits, little-endian.

        Lists of ``float`` or ``int`` would cost Flower a check per entry.
        """
        return self.bins.astype("<i4").tobytes() + self.counts.astype("<u4").tobytes()

    @classmethod
    def unpacked(cls, data: bytes) -> Histogram:
        """Read the output of `packed`, after `wrong` accepted it."""
        many = len(data) // ENTRY
        bins, counts = np.frombuffer(data, "<i4", many), np.frombuffer(data, "<u4", many, offset=4 * many)
        return cls(bins.astype(np.int64), counts.astype(np.int64))


def wrong(data: bytes, count: int | None = None, fewest: int = 1) -> str:
    """Return the problem of a received histogram of ``count`` samples, ``fewest`` in a bin; empty if it is valid."""
    if len(data) % ENTRY or (count is not None and len(data) > ENTRY * count):
        return f"{len(data)} bytes: must be {ENTRY} for each bin" + f", of at most {count}" * (count is not None)
    found = Histogram.unpacked(data)
    if (np.abs(found.bins) > LAST).any() or (np.diff(found.bins) <= 0).any():
        return "its bins must be finite and ascending"
    if not found.at_least(1):
        return "its bins must not be empty"
    if count not in (None, total := int(found.counts.sum())):
        return f"its counts add up to {total}: must be {count}"
    return "" if fewest == 1 or found.at_least(fewest) else f"it has a bin of fewer than fewest = {fewest} samples"
