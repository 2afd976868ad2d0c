"""Splits of rows: holdouts, folds, personal test sets and thinning."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from edelweiss.datasets.errors import DataError
from edelweiss.datasets.source import Digests, Ints, Mask


@dataclass(frozen=True, eq=False)
class Units:
    """The units of rows that splits keep whole: single rows, patients or groups."""

    first: Ints  # shape (u,): the first row of each unit
    of: Ints  # shape (n,): the unit of each row

    @classmethod
    def among(cls, unit: Ints, within: Ints | None = None) -> Units:
        """Find the units among n rows: by the number of each row's unit in the data set, which defines the order.

        `within` divides units further, such as by the hospital of a patient's row.
        """
        if within is not None:
            unit = within * (1 + int(unit.max(initial=0))) + unit
        _, first, of = np.unique(unit, return_index=True, return_inverse=True)
        return cls(first.astype(np.int64), of.astype(np.int64))

    def highest(self, values: Ints) -> Ints:
        """Return the highest value of each unit's rows: a unit is positive if any row is."""
        found = np.full(len(self.first), np.iinfo(np.int64).min)
        np.maximum.at(found, self.of, values)
        return found

    def strata(self, values: Ints) -> Ints:
        """Return a stratum for each unit, see `highest`.

        All units share one stratum if every unit would have its own, like characters with their own classes: nothing is
        selected from a stratum with a single unit.
        """
        found = self.highest(values)
        alone = len(self.first) < len(self.of) and len(np.unique(found)) == len(found)
        return np.zeros_like(found) if alone else found


def merge_units(groups: Ints, patients: Ints | Digests) -> Ints:
    """Merge groups that share patients, so that splits keep both whole; units, (n,), are in the order of groups."""
    (_, of), (_, group) = (np.unique(values, return_inverse=True) for values in (patients, groups))
    found = groups
    while True:  # at most the length of the longest chain of groups that share patients
        lowest = np.full(int(of.max(initial=0)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(lowest, of, found)
        least = np.full(int(group.max(initial=0)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(least, group, lowest[of])
        if np.array_equal(least[group], found):
            return found
        found = least[group]


class SiteRows:
    """The rows of each site, in one array for any number of sites, by their `owner`, (n,), 0 to sites - 1."""

    def __init__(self, rows: Ints, owner: Ints, sites: int) -> None:
        self._rows = rows[np.argsort(owner, kind="stable")]
        self._ends = np.cumsum(np.bincount(owner, minlength=sites))

    def __getitem__(self, site: int) -> Ints:
        """Return the rows of a site, in order."""
        return self._rows[self._ends[site - 1] if site else 0 : self._ends[site]]


class AllRows(SiteRows):
    """All rows at each site, (n,)."""

    def __init__(self, rows: Ints) -> None:
        self._rows = rows

    def __getitem__(self, site: int) -> Ints:
        """Return all rows, in order."""
        return self._rows


def random_stream(seed: int, purpose: str, *site: int) -> np.random.Generator:
    """Return the random stream of a seed for a purpose, of all sites or of one."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *site])


def stratified(strata: Ints, share: float, rng: np.random.Generator) -> Mask:
    """Select a share of the rows of each stratum.

    Strata, shape (n,), are classes or any others; the result, shape (n,), is bool. With a share in (0, 1) a stratum of
    two or more rows is on both sides; a single row is never selected.
    """
    chosen = np.zeros(len(strata), np.bool_)
    if share > 0:
        for stratum in np.unique(strata):
            members = np.flatnonzero(strata == stratum)
            size = min(max(round(share * len(members)), 1), len(members) - 1)
            chosen[rng.permutation(members)[:size]] = True
    return chosen


def deal_proportionally(strata: Ints, owner: Ints, test: Ints, sites: int, rng: np.random.Generator) -> Ints:
    """Assign test rows, (m,), to sites in the proportions of the training rows, (n,), per stratum; return the sites.

    A site gets its proportion of each stratum, rounded up or down. A site without any gets a row of its largest
    stratum, if another site can spare one.

    Raises
    ------
    DataError
        If there are test rows of a stratum without training rows.
    """
    dealt_to = np.empty(len(test), np.int64)
    for stratum in np.unique(test):
        counts = np.bincount(owner[strata == stratum], minlength=sites)
        if not counts.any():
            raise DataError.plain(
                "personal-test deals the test rows of a class as its training rows, and a class of the test set has "
                "none, as in omniglot; take personal-test = false",
                key="personal-test",
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


def assign_folds(strata: Ints, folds: int, rng: np.random.Generator) -> Ints:
    """Assign rows to folds of equal size, per stratum.

    Strata, shape (n,), are classes or any others; folds, shape (n,), are in [0, folds). Sizes differ by at most one,
    overall and per stratum.
    """
    shuffled = rng.permutation(len(strata))
    fold = np.empty(len(strata), np.int64)
    fold[shuffled[np.argsort(strata[shuffled], kind="stable")]] = np.arange(len(strata)) % folds
    return fold


def thinned(rare: Mask, owner: Ints, share: float, rng: np.random.Generator) -> Mask:
    """Thin a class, the `rare` rows, to a share of all rows in (0, 1); return which rows stay. All have shape (n,).

    The share is met as nearly as possible with at least one row. A class that is already rarer, or the only one, is
    unchanged, and a site with rows of that class only keeps one of them. Single rows are removed rather than patients.
    """
    stays = np.ones(len(rare), np.bool_)
    others = int(np.sum(~rare))
    excess = int(rare.sum()) - max(1, round(others * share / (1 - share)))
    if others and excess > 0:
        candidates = rng.permutation(np.flatnonzero(rare))
        _, first = np.unique(owner[candidates], return_index=True)
        keepers = candidates[first]  # one per site, spared if the site has nothing else
        spared = keepers[~np.isin(owner[keepers], owner[~rare])]
        candidates = candidates[~np.isin(candidates, spared)]
        stays[candidates[:excess]] = False
    return stays
