"""Which rows are held out, dealt into folds or to a personal test, and left when a class is thinned."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from edelweiss.datasets.errors import DataError
from edelweiss.datasets.source import Digests, Ints, Mask


@dataclass(frozen=True, eq=False)
class Units:
    """What is dealt whole, of some rows of a data set: single rows, or all rows of a patient or a group.

    Parameters
    ----------
    first
        Shape (u,): the first row of each unit.
    of
        Shape (n,): the unit of each row.
    """

    first: Ints
    of: Ints

    @classmethod
    def among(cls, unit: Ints, within: Ints | None = None) -> Units:
        """Return the units among rows.

        Parameters
        ----------
        unit
            Shape (n,): of each row the number of its unit among all of the data set. Theirs is the order.
        within
            Shape (n,): what cuts a unit in parts, such as the hospital that a patient's row is of. None: nothing does.
        """
        if within is not None:
            unit = within * (1 + int(unit.max(initial=0))) + unit
        _, first, of = np.unique(unit, return_index=True, return_inverse=True)
        return cls(first.astype(np.int64), of.astype(np.int64))

    def highest(self, values: Ints) -> Ints:
        """Return for each unit the highest value among its rows: it is positive if one of them is."""
        found = np.full(len(self.first), np.iinfo(np.int64).min)
        np.maximum.at(found, self.of, values)
        return found

    def strata(self, values: Ints) -> Ints:
        """Return a stratum for each unit, see `highest`.

        It is one for all where units of several rows all differ, as characters do, of which each has its own classes:
        of a stratum with a single unit none would be chosen.
        """
        found = self.highest(values)
        alone = len(self.first) < len(self.of) and len(np.unique(found)) == len(found)
        return np.zeros_like(found) if alone else found


def joined(groups: Ints, patients: Ints | Digests) -> Ints:
    """Return for each row the number of what it is dealt with, where neither a group nor a patient is ever cut.

    Parameters
    ----------
    groups, patients
        Shape (n,): of each row.

    Returns
    -------
    unit
        Shape (n,), in the order of the groups. Groups that share a patient are one unit.
    """
    (_, of), (_, group) = (np.unique(values, return_inverse=True) for values in (patients, groups))
    found = groups
    while True:  # as often as the longest chain of groups that share patients has links
        lowest = np.full(int(of.max(initial=0)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(lowest, of, found)
        least = np.full(int(group.max(initial=0)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(least, group, lowest[of])
        if np.array_equal(least[group], found):
            return found
        found = least[group]


class Dealt:
    """Rows that were dealt to sites, in one array: of ten thousand sites none has an array of its own.

    Parameters
    ----------
    rows
        Shape (n,).
    owner
        Shape (n,): the site of each, 0 to sites - 1.
    sites
        How many there are.
    """

    def __init__(self, rows: Ints, owner: Ints, sites: int) -> None:
        self._rows = rows[np.argsort(owner, kind="stable")]
        self._ends = np.cumsum(np.bincount(owner, minlength=sites))

    def __getitem__(self, site: int) -> Ints:
        """Return the rows of a site, in their order."""
        return self._rows[self._ends[site - 1] if site else 0 : self._ends[site]]


def random_stream(seed: int, purpose: str, *site: int) -> np.random.Generator:
    """Return the random stream that the seed gives for a purpose, of all sites or of one."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *site])


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
        class that is already rarer is left as it is, and so are rows of one class only. What goes are rows and not
        patients: they go nowhere, so no patient comes to be on two sides.
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
