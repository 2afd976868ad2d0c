"""mean_k: the weighted average of the sites' replies, with one reply in memory at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.federation.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.federation.sites import Reply
    from edelweiss.problems import Arrays


class Mean:
    """A running weighted mean of named vectors."""

    def __init__(self) -> None:
        self.sums: Arrays = {}
        self.total = 0.0

    def add(self, arrays: Arrays, weight: float) -> None:
        """Add a set of vectors; the order of the calls fixes the rounding."""
        self.total += weight
        for name, vector in arrays.items():
            if name in self.sums:
                self.sums[name].add_(vector, alpha=weight)
            else:
                self.sums[name] = vector * weight

    def value(self) -> Arrays:
        """Return the mean of each vector, which replaces the sums; empty if nothing was added.

        Raises
        ------
        RunError
            If nothing that was added has a weight.
        """
        if self.sums and not self.total:
            raise RunError(
                "none of the sites that replied has anything to train on, such as positives: wait for others, see "
                "min-replies and round-timeout"
            )
        return {name: vector.div_(self.total) for name, vector in self.sums.items()}


def average(replies: Iterable[Reply]) -> Arrays:
    """Return mean_k of every vector in the replies, weighted by the sites' weights.

    Parameters
    ----------
    replies : iterable of Reply
        In a fixed order, for reproducible sums.

    Returns
    -------
    Arrays
        Fresh vectors.
    """
    mean = Mean()
    for reply in replies:
        mean.add(reply.arrays, reply.site.weight)
    return mean.value()
