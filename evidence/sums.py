"""Grouped sums, over the samples of a bin or of a patient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


def sum_by(values: Floats, place: Ints, count: int) -> Floats:
    """Sum values, shape (n,), by the group of each, numbered from 0 to count - 1."""
    return np.bincount(place, values, count).astype(np.float64)
