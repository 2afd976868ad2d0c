"""Sums over the samples of a bin, or of a patient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


def added(values: Floats, place: Ints, count: int) -> Floats:
    """Return for each of so many places the sum of the values that belong there.

    Parameters
    ----------
    values, place : ndarray
        Shape (n,): the values, and the place of each, from 0.
    count : int
        How many places there are.
    """
    return np.bincount(place, values, count).astype(np.float64)
