"""How rows are split: over sites, into held-out sets, and thinned to a rare class.

A partitioner returns the owner of each row, so every row lands at exactly one site by construction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datasets.errors import DataError

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Rows:
    """What a partitioner may look at: one entry per row in each array.

    Parameters
    ----------
    labels
        Shape (n,): the labels of the run, 0 and 1 in a binary one.
    classes
        Shape (n,): the original classes.
    sides
        Shape (n,): 0 and 1 for negative and positive classes; all 0 in a run that keeps the classes.
    groups
        Shape (n,): the natural site of each row, or its character; None when the data set has none.
    concentration
        Of the Dirichlet distribution, above 0.
    least
        Rows that a site has at least: one to train on, and one to hold out where it does.
    """

    labels: Ints
    classes: Ints
    sides: Ints
    groups: Ints | None
    concentration: float
    least: int = 2


Partitioner = Callable[[Rows, int, np.random.Generator], Ints]


def iid(rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Deal the rows at random; sizes differ by one at most."""
    return rng.permutation(np.arange(len(rows.labels)) % sites)


def dirichlet(rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Split each label over the sites by shares drawn from a Dirichlet distribution: label skew.

    A site left with fewer than the least rows gets some, at random, from the site that is largest at the moment.
    """
    owner = np.empty(len(rows.labels), np.int64)
    for label in np.unique(rows.labels):
        members = rng.permutation(np.flatnonzero(rows.labels == label))
        shares = rng.dirichlet(np.full(sites, rows.concentration))
        ends = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for site, part in enumerate(np.split(members, ends)):
            owner[part] = site
    return _topped_up(owner, sites, rows.least, rng)


def by_class(rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Deal the original classes of each side into disjoint groups, one per site (CODASCA).

    With more sites than a side has classes, the sites that share a class split its rows evenly. With one
    class on either side all sites share both.
    """
    owner = np.empty(len(rows.labels), np.int64)
    for side in np.unique(rows.sides):
        classes = rng.permutation(np.unique(rows.classes[rows.sides == side]))
        for place, original in enumerate(classes):
            sharers = np.arange(place % sites, sites, len(classes))
            members = rng.permutation(np.flatnonzero(rows.classes == original))
            owner[members] = sharers[np.arange(len(members)) % len(sharers)]
    return _topped_up(owner, sites, rows.least, rng)


def natural(rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Give each row to the site that it came from."""
    if rows.groups is None:
        raise DataError.plain(
            "partition 'sites' needs a data set with natural sites, such as heart-disease or harbox; "
            "use iid, dirichlet or by-class"
        )
    groups = len(np.unique(rows.groups))
    if sites != groups:
        raise DataError.plain(
            f"partition 'sites' needs as many sites as the data set has: {groups}, not {sites}; "
            f"set the number of sites to {groups}, or use iid, dirichlet or by-class"
        )
    return rows.groups


def by_group(rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Deal whole groups to the sites: the characters of Omniglot with all their turns, or hospitals."""
    if rows.groups is None:
        raise DataError.plain(
            "partition 'by-group' needs a data set with groups, such as omniglot; use iid, dirichlet or by-class"
        )
    groups, group = np.unique(rows.groups, return_inverse=True)
    if len(groups) < sites:
        raise DataError.plain(
            f"partition 'by-group' gives each of {sites} sites a group of its own, and the data have {len(groups)}; "
            "use fewer sites"
        )
    return (rng.permutation(len(groups)) % sites)[group]


PARTITIONERS: dict[str, Partitioner] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "by-class": by_class,
    "by-group": by_group,
    "sites": natural,
}
PARTITIONS = tuple(PARTITIONERS)


def partition(name: str, rows: Rows, sites: int, rng: np.random.Generator) -> Ints:
    """Give each row an owner.

    Parameters
    ----------
    name
        One of `PARTITIONS`.
    rows
        The n training rows.
    sites
        How many owners, at least 1.
    rng
        The random stream.

    Returns
    -------
    owner
        Shape (n,): the site of each row, in [0, sites). Every site has at least ``rows.least`` rows.

    Raises
    ------
    DataError
        Too few rows for so many sites, or natural sites asked of a data set without them.
    """
    if len(rows.labels) < rows.least * sites:
        raise DataError.plain(
            f"{sites} sites need at least {rows.least * sites} training rows ({rows.least} each), and there are "
            f"{len(rows.labels)}; use fewer sites"
        )
    return PARTITIONERS[name](rows, sites, rng)


def _topped_up(owner: Ints, sites: int, least: int, rng: np.random.Generator) -> Ints:
    sizes = np.bincount(owner, minlength=sites)
    for site in np.flatnonzero(sizes < least):
        while sizes[site] < least:
            largest = np.argmax(sizes)
            owner[rng.choice(np.flatnonzero(owner == largest))] = site
            sizes[largest] -= 1
            sizes[site] += 1
    return owner


def stratified(strata: Ints, share: float, rng: np.random.Generator) -> Mask:
    """Choose a share of the rows of each stratum.

    Parameters
    ----------
    strata
        Shape (n,): the class of each row, or any other stratum.
    share
        In [0, 1). A stratum of two rows or more is on both sides when the share is above 0; a single row is
        never chosen.
    rng
        The random stream.

    Returns
    -------
    chosen
        Shape (n,) bool.
    """
    chosen = np.zeros(len(strata), np.bool_)
    if share > 0:
        for stratum in np.unique(strata):
            members = np.flatnonzero(strata == stratum)
            size = min(max(round(share * len(members)), 1), len(members) - 1)
            chosen[rng.permutation(members)[:size]] = True
    return chosen


def dealt_alike(strata: Ints, owner: Ints, test: Ints, sites: int, rng: np.random.Generator) -> Ints:
    """Deal test rows over the sites in the proportions that the training rows have, stratum by stratum.

    Parameters
    ----------
    strata
        Shape (n,): the class of each training row, or any other stratum.
    owner
        Shape (n,): its site.
    test
        Shape (m,): the strata of the test rows.
    sites
        How many sites.
    rng
        The random stream.

    Returns
    -------
    owner
        Shape (m,): the site of each test row. Of each stratum a site has its proportion, rounded up or down, and so
        none of a stratum that it does not train on. A site that would be left without any gets a row of the stratum
        that it has most of, if another site can spare one.

    Raises
    ------
    DataError
        There are test rows of a stratum that no site trains on.
    """
    dealt_to = np.empty(len(test), np.int64)
    for stratum in np.unique(test):
        counts = np.bincount(owner[strata == stratum], minlength=sites)
        if not counts.any():
            raise DataError.plain(
                "personal-test deals the test rows of a class as its training rows, and a class of the test set has "
                "none, as in omniglot; take personal-test = false"
            )
        members = rng.permutation(np.flatnonzero(test == stratum))
        ends = np.rint(np.cumsum(counts)[:-1] / counts.sum() * len(members)).astype(np.int64)
        for site, part in enumerate(np.split(members, ends)):
            dealt_to[part] = site
    sizes = np.bincount(dealt_to, minlength=sites)
    for bare in np.flatnonzero(sizes == 0):
        own, counts = np.unique(strata[owner == bare], return_counts=True)
        spare = np.flatnonzero((test == own[np.argmax(counts)]) & (sizes[dealt_to] > 1))
        if len(spare):
            row = spare[np.argmax(sizes[dealt_to[spare]])]
            sizes[dealt_to[row]] -= 1
            sizes[bare] += 1
            dealt_to[row] = bare
    return dealt_to


def dealt(strata: Ints, folds: int, rng: np.random.Generator) -> Ints:
    """Deal rows into folds of equal size, stratum by stratum.

    Parameters
    ----------
    strata
        Shape (n,): the class of each row, or any other stratum.
    folds
        At least 1.
    rng
        The random stream.

    Returns
    -------
    fold
        Shape (n,): the fold of each row, in [0, folds). Sizes differ by one at most, and so do the parts that the
        folds have of a stratum.
    """
    shuffled = rng.permutation(len(strata))
    fold = np.empty(len(strata), np.int64)
    fold[shuffled[np.argsort(strata[shuffled], kind="stable")]] = np.arange(len(strata)) % folds
    return fold


def thinned(rare: Mask, owner: Ints, share: float, rng: np.random.Generator) -> Mask:
    """Choose which rows stay when a class is thinned to a share of all rows.

    Parameters
    ----------
    rare
        Shape (n,) bool: the rows of the class to thin.
    owner
        Shape (n,): the site of each row. A site with rows of that class only keeps one of them.
    share
        Of that class among the rows that stay, in (0, 1), as near as whole rows allow, but never no row. A
        class that is already rarer is left as it is, and so are rows of one class only.
    rng
        The random stream.

    Returns
    -------
    stays
        Shape (n,) bool.
    """
    stays = np.ones(len(rare), np.bool_)
    others = int(np.sum(~rare))
    excess = int(rare.sum()) - max(1, round(others * share / (1 - share)))
    if others and excess > 0:
        candidates = rng.permutation(np.flatnonzero(rare))
        _, first = np.unique(owner[candidates], return_index=True)
        keepers = candidates[first]  # one per site; spared where the site has nothing else
        spared = keepers[~np.isin(owner[keepers], owner[~rare])]
        candidates = candidates[~np.isin(candidates, spared)]
        stays[candidates[:excess]] = False
    return stays
