"""A site as the coordinator knows it, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edelweiss.problems import Arrays


@dataclass(frozen=True, eq=False)  # it is one object in a run, and a key of many dictionaries
class Site:
    """A site as the coordinator knows it.

    Attributes
    ----------
    index : int
        0 to K-1, in the order of the sites' names; with the seed it fixes the site's random stream.
    name : str
        What its operator calls it.
    node_id : int
        Flower's address of it, different in every run.
    weight : float
        Its part in averages: 1, or its number of training samples (``weighting = "examples"``); 0 for a site that
        contributes nothing (`problems.Problem.idle`).
    held_out : int, optional
        How many samples it evaluates on, as it said before the run.
    """

    index: int
    name: str
    node_id: int
    weight: float = 1.0
    held_out: int | None = None


@dataclass(frozen=True)
class Reply:
    """What one site answered in one phase."""

    site: Site
    arrays: Arrays
