"""Protection against differencing: is a set of patients next to one that replies were about before?

The difference of sums over two sets is a sum over those in one of them alone. An honest coordinator that asks again
after a hospital has added a patient must not learn that patient. A coordinator that chooses its models needs no second
run (docs/differential-privacy.md), so combinations of more than two sets are not looked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.datasets.source import Digests


def isolates(now: Digests, before: Sequence[Digests], fewest: int) -> bool:
    """Whether a set differs from an earlier one, but by fewer patients than ``fewest``.

    Parameters
    ----------
    now : ndarray
        Shape (2, n): patient and content of each row, as hashes.
    before : sequence of ndarray
        The same for the earlier sets. One of fewer patients was not answered.
    fewest : int
        Patients.
    """
    sets = [one for one in (now, *before) if len(np.unique(one[0])) >= fewest]
    if not sets or sets[0] is not now:
        return False
    distances = [_apart(now, one) for one in sets[1:]]
    return 0 not in distances and any(0 < who < fewest for who in distances)


def _apart(one: Digests, other: Digests) -> int:
    """Count the patients of whom one set has rows that the other lacks, or has them another number of times.

    If patients have come or gone, only these count, whatever the rows of the others say.
    """
    rows, where = np.unique(np.concatenate([one, other], axis=1), axis=1, return_inverse=True)
    where = where.ravel()
    counts = [np.bincount(each, minlength=rows.shape[1]) for each in (where[: one.shape[1]], where[one.shape[1] :])]
    return len(np.setxor1d(one[0], other[0])) or len(np.unique(rows[0, counts[0] != counts[1]]))
