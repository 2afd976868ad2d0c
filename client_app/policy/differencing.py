"""Protection against differencing: do replies about several sets of patients, combined, isolate a few of them?

The difference of sums over two sets is a sum over their symmetric difference; the same holds for any linear combination
of more sets. Patients in exactly the same sets cannot be separated by any combination.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from edelweiss.datasets.source import Digests

MOST = 12  # most small groups whose unions are examined; with more, the set is not considered safe


def isolates(now: Digests, before: Sequence[Digests], fewest: int) -> bool:
    """Whether sums over a new set, combined with earlier ones, can isolate fewer patients than ``fewest``.

    Parameters
    ----------
    now : ndarray
        Shape (2, n): patient and content of each row, as hashes.
    before : sequence of ndarray
        The same for the earlier sets.
    fewest : int
        Patients.
    """
    sets = [one for one in (now, *before) if len(np.unique(one[0])) >= fewest]
    if len(sets) < 2 or sets[0] is not now:
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
    if not _adds(vectors) or _adds(np.delete(vectors, small, axis=0)):
        return False  # it is a combination of what was told; or whatever combines it is about a large group as well
    sizes = np.array([len(who) for who in people])
    if _spread(vectors, sizes, fewest):
        return False
    if len(small) > MOST:
        return True
    # Nothing is left of it on all others: some combination vanishes there, and not on these.
    return any(not _adds(np.delete(vectors, few, axis=0)) for few in _unions(small, people, fewest))


def _spread(vectors: NDArray[np.int64], sizes: NDArray[np.int64], fewest: int) -> bool:
    """Whether disjoint families of groups prove that any combination involves enough patients.

    A combination cannot vanish on any of the families, so it involves at least one group of each.
    """
    left, people = np.argsort(-sizes, kind="stable"), 0
    while people < fewest:
        if not _adds(vectors[left]):
            return False
        shown: list[int] = []
        while not shown or not _adds(vectors[shown]):  # the shortest sufficient prefix
            low, high = 0, len(left)
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if _adds(vectors[[*shown, *left[:middle]]]) else (middle + 1, high)
            shown.append(int(left[low - 1]))
        people += int(sizes[shown].min())
        left = left[~np.isin(left, shown)]
    return True


def _adds(vectors: NDArray[np.int64]) -> bool:
    """Whether the first set is linearly independent of the others on these groups."""
    return len(vectors) > 0 and bool(np.linalg.matrix_rank(vectors) > np.linalg.matrix_rank(vectors[:, 1:]))


def _unions(small: Sequence[int], people: Sequence[Digests], fewest: int) -> Iterator[list[int]]:
    """Yield the unions of groups with few patients."""
    for size in range(1, len(small) + 1):
        for few in combinations(small, size):
            if len(np.unique(np.concatenate([people[one] for one in few]))) < fewest:
                yield list(few)
