"""A site as the coordinator knows it, and its reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edelweiss.problems import Arrays


@dataclass(frozen=True, eq=False)  # one object per site and run, used as a dictionary key
class Site:
    """A site as the coordinator knows it."""

    index: int  # 0 to K-1, in the order of the sites' names; with the seed it determines the site's random streams
    name: str  # set by its operator
    node_id: int  # Flower's node id, different in every run
    # its weight in averages: 1, or its number of training samples (`weighting = "examples"`); 0 for a site that
    # contributes nothing (`problems.Problem.idle`)
    weight: float = 1.0
    held_out: int | None = None  # its number of held-out samples, as reported before the run

    @property
    def named(self) -> bool:
        """Whether the coordinator knows its name; before its first reply it is called after its node."""
        return self.name != f"node {self.node_id}"


@dataclass(frozen=True)
class Reply:
    """A site's reply in one phase."""

    site: Site
    arrays: Arrays
