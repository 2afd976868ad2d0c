"""Partitions of rows over sites: a function each, and a row each in `PARTITIONERS`.

A partitioner returns the owner of each row, so that every row belongs to exactly one site.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edelweiss.datasets.errors import DataError
from edelweiss.datasets.source import Ints

NO_SITES = "partition 'sites' or 'split-sites' needs data with natural sites, but these have none: use 'iid'"


@dataclass(frozen=True, eq=False)
class Rows:
    """The input of a partitioner: one entry per row, or per unit of rows that stay together, in each array."""

    labels: Ints  # shape (n,): the labels of the run, 0 and 1 in a binary one
    classes: Ints  # shape (n,): the original classes
    sides: Ints  # shape (n,): 0 and 1 for negative and positive classes; all 0 in a run that keeps the classes
    groups: Ints | None  # shape (n,): the natural site of each row; None without
    concentration: float  # parameter of the Dirichlet distribution, above 0
    least: int = 2  # minimum number of rows of a site: one to train on, and one to hold out if it does
    what: str = "training rows"  # the name of an entry in messages, such as patients or groups
    instead: str = ""  # the alternative suggested if there are too few


Partitioner = Callable[[Rows, int, np.random.Generator], Ints]


def iid(rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Split rows, or whole patients or groups, at random; sizes differ by at most one."""
    return rng.permutation(np.arange(len(rows.labels)) % sites)


def dirichlet(rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Split each label over the sites by shares drawn from a Dirichlet distribution: label skew.

    A site with fewer than the minimum gets random rows from the currently largest site.
    """
    owner = np.empty(len(rows.labels), np.int64)
    for label in np.unique(rows.labels):
        members = rng.permutation(np.flatnonzero(rows.labels == label))
        shares = rng.dirichlet(np.full(sites, rows.concentration))
        ends = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for site, part in enumerate(np.split(members, ends)):
            owner[part] = site
    return _top_up(owner, sites, rows.least, rng)


def by_class(rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Split the original classes of each side into disjoint groups, one per site (CODASCA).

    With more sites than classes on a side, the sites that share a class split its rows evenly. With one class on either
    side all sites share both.
    """
    owner = np.empty(len(rows.labels), np.int64)
    for side in np.unique(rows.sides):
        classes = rng.permutation(np.unique(rows.classes[rows.sides == side]))
        for place, original in enumerate(classes):
            sharers = np.arange(place % sites, sites, len(classes))
            members = rng.permutation(np.flatnonzero(rows.classes == original))
            owner[members] = sharers[np.arange(len(members)) % len(sharers)]
    return _top_up(owner, sites, rows.least, rng)


def natural(rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Assign each row to its natural site."""
    if rows.groups is None:
        raise DataError.plain(NO_SITES)
    groups = len(np.unique(rows.groups))
    if sites != groups:
        raise DataError.plain(
            f"partition 'sites' needs as many sites as the data set has: {groups}, not {sites}; "
            f"set the number of sites to {groups}, or use iid, dirichlet or by-class",
            key="sites",
            value=sites,
            allowed=groups,
        )
    return rows.groups


def split_sites(rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Split each natural site over several sites, in proportion to its rows (CODASCA, Table 3)."""
    if rows.groups is None:
        raise DataError.plain(NO_SITES)
    names, group, counts = np.unique(rows.groups, return_inverse=True, return_counts=True)
    if sites < len(names):
        raise DataError.plain(
            f"partition 'split-sites' gives each of {sites} sites rows of one of the data's own, which are "
            f"{len(names)}: use as many sites, or more",
            key="sites",
            value=sites,
        )
    parts = np.ones(len(names), np.int64)
    while parts.sum() < sites:  # one more part for the site with the largest parts
        parts[np.argmax(counts / parts)] += 1
    first = np.cumsum(parts) - parts
    owner = np.empty(len(group), np.int64)
    for place, (count, own) in enumerate(zip(counts, parts, strict=True)):
        owner[group == place] = first[place] + rng.permutation(np.arange(count) % own)
    return owner


PARTITIONERS: dict[str, Partitioner] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "by-class": by_class,
    "by-group": iid,  # whole groups are split
    "sites": natural,
    "split-sites": split_sites,
}
NATURAL = ("sites", "split-sites")  # need natural sites
PARTITIONS = tuple(PARTITIONERS)


def partition(name: str, rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Assign each of n rows to a site in [0, sites), shape (n,); every site has at least ``rows.least`` rows.

    Raises
    ------
    DataError
        If there are too few rows or groups, or the number of sites differs from that of the natural sites.
    """
    if len(rows.labels) < rows.least * sites:
        raise DataError.plain(
            f"{sites} sites need at least {rows.least * sites} {rows.what} ({rows.least} each), and there are "
            f"{len(rows.labels)}; use fewer sites{rows.instead}",
            key="sites",
            value=sites,
        )
    return PARTITIONERS[name](rows, sites, rng)


def _top_up(owner: Ints, sites: int, least: int, rng: np.random.Generator) -> Ints:
    sizes = np.bincount(owner, minlength=sites)
    for site in np.flatnonzero(sizes < least):
        while sizes[site] < least:
            largest = np.argmax(sizes)
            owner[rng.choice(np.flatnonzero(owner == largest))] = site
            sizes[largest] -= 1
            sizes[site] += 1
    return owner
