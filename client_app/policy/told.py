"""Whether answers about several sets of patients, taken together, are about a few of them.

A sum over one set less that over another is a sum over those in which they differ. So is any combination of more sets:
of AP and PA images, less both and one lateral, it is that one. What a combination says of a patient depends on the sets
that have the patient. Patients who are in the same sets stand together, whatever the combination.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from datasets.source import Digests

MOST = 12  # groups of few patients whose unions are looked through; more of them are too many to say that it is safe


def isolates(sets: Sequence[Digests], fewest: int) -> bool:
    """Whether some combination of sums over these sets is about fewer patients than this, and somebody.

    Parameters
    ----------
    sets : sequence of ndarray
        Each (2, n): whose each row is, and all that it says. Those of fewer patients are left out: nothing is told.
    fewest : int
        Patients.
    """
    sets = [one for one in sets if len(np.unique(one[0])) >= fewest]
    if len(sets) < 2:
        return False
    everything = np.concatenate(sets, axis=1)
    of = np.repeat(np.arange(len(sets)), [one.shape[1] for one in sets])
    # What a sum is over may be the same in a row that says something else, but for who has one.
    return any(_isolates(rows, everything[0], of, len(sets), fewest) for rows in (everything[:1], everything))


def _isolates(rows: Digests, whose: Digests, of: NDArray[np.int64], sets: int, fewest: int) -> bool:
    _, first, row = np.unique(rows, axis=1, return_index=True, return_inverse=True)
    counts = np.zeros((len(first), sets), np.int64)
    np.add.at(counts, (row.ravel(), of), 1)
    vectors, group = np.unique(counts, axis=0, return_inverse=True)
    people = [np.unique(whose[first[group.ravel() == one]]) for one in range(len(vectors))]
    small = [one for one, who in enumerate(people) if len(who) < fewest]
    if len(small) > MOST:
        return True
    rank = np.linalg.matrix_rank(vectors)
    for few in _unions(small, people, fewest):
        rest = np.delete(vectors, few, axis=0)
        if not len(rest) or np.linalg.matrix_rank(rest) < rank:  # something vanishes on all others, and not on these
            return True
    return False


def _unions(small: Sequence[int], people: Sequence[Digests], fewest: int) -> Iterator[list[int]]:
    """Yield the groups that together have few patients."""
    for size in range(1, len(small) + 1):
        for few in combinations(small, size):
            if len(np.unique(np.concatenate([people[one] for one in few]))) < fewest:
                yield list(few)
