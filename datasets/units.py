"""Detection of features in a different unit at some sites, from counts, sums and sums of squares.

A unit changes a feature's mean by far more than hospitals differ. With mean m and spread s (standard deviation) of a
site's n values, and M, S and N of the other sites' pooled values, a feature is *far* if

1. the means are far apart: ``|m - M| >= 2.5 max(s, S)``; or both mean and spread are: ``|m - M| >= 2.5 min(s, S)``,
   where one spread is four times the other, or more; and
2. the difference is significant: ``|m - M| >= t max(s, S) sqrt(1/n + 1/N)``, with t the quantile of Student's
   distribution with ``min(n, N) - 1`` degrees of freedom that a share of 0.01 / (2 x features x sites) is above
   (Bonferroni).

The larger spread makes this robust for skewed features: a rare large value moves the mean of its site together with the
spread; if a small site has none by chance, the others' spread includes them.

A spread alone is far if it is at most a tenth of each other site's, three or more others have spreads within a factor
of three of each other, the site has at least as many values as one of them, and ``total² / squares`` is at least 30
everywhere, so that at least 30 values make up the sum. A larger spread may be due to a single value, which the sums
cannot tell.

Features that are 0 or 1 at all sites have no unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ALARMS = 0.01  # maximum rate of false alarms per run on identically distributed sites
FEWEST = 10  # minimum number of values on either side
APART, TIMES = 2.5, 4.0  # means in spreads; one spread in the other
ALONE, ALIKE, PEERS, VALUES = 10.0, 3.0, 3, 30  # of a spread alone
FAR, MANY = np.array([10.0, 30.0, 100.0, 1000.0]), 1e6  # spreads from the mean; values of an unknown training set
_ROUNDING = 1e-12  # share of the mean square below which a variance is a rounding error


@dataclass(frozen=True)
class Moments:
    """Count, sum and sum of squares of the values of each feature."""

    # count, total, squares: shape (..., F), float64; as `datasets.moments` returns them
    count: Floats
    total: Floats
    squares: Floats

    @property
    def mean(self) -> Floats:
        """Mean, shape (..., F); 0 without values."""
        mean: Floats = self.total / np.maximum(self.count, 1)
        return mean

    @property
    def spread(self) -> Floats:
        """Standard deviation, shape (..., F)."""
        n = np.maximum(self.count, 1)
        power = self.squares / n
        variance = power - self.mean**2
        variance = np.where(variance <= _ROUNDING * power, 0.0, variance)
        spread: Floats = np.sqrt(variance * n / np.maximum(n - 1, 1))
        return spread

    @property
    def binary(self) -> NDArray[np.bool_]:
        """Whether all values are 0 or 1, shape (..., F), as only these integers equal their squares."""
        same: NDArray[np.bool_] = self.total == self.squares
        return same

    def __getitem__(self, place: Any) -> Moments:
        return Moments(self.count[place], self.total[place], self.squares[place])

    def __sub__(self, other: Moments) -> Moments:
        return Moments(self.count - other.count, self.total - other.total, self.squares - other.squares)


def rounded(value: float, digits: int = 3) -> str:
    """Format a feature value with some digits, without an exponent from 0.0001 to a million."""
    return f"{float(f'{value:.{digits}g}'):g}"


def far(own: Moments, others: Moments, comparisons: int) -> NDArray[np.bool_]:
    """Return which means are far from the others', by the rule above; features are columns.

    ``comparisons`` is the total number of comparisons, for the Bonferroni correction.
    """
    n, m = own.count, others.count
    apart = np.abs(own.mean - others.mean)
    low, high = np.minimum(own.spread, others.spread), np.maximum(own.spread, others.spread)
    both = (apart >= APART * low) & (high >= TIMES * low) & (low > 0)
    found: NDArray[np.bool_] = ((apart >= APART * high) | both) & (np.minimum(n, m) >= FEWEST) & (apart > 0)
    found &= ~(own.binary & others.binary)
    if not found.any():
        return found
    from scipy.special import stdtrit  # only where there is something to judge

    least = np.maximum(np.minimum(n, m), 2)
    quantile = stdtrit(np.minimum(least - 1, 1e6), 1 - ALARMS / (2 * comparisons))
    found &= apart >= quantile * high * np.sqrt(1 / np.maximum(n, 1) + 1 / np.maximum(m, 1))
    return found


def far_sites(sites: Sequence[Moments]) -> dict[int, list[int]]:
    """Return the sites, from 0, at which each feature is far, by the feature's index.

    A far site distorts the comparison of the others with it, so the farthest is removed and the rest are compared
    again. With two sites both are returned.
    """
    every = Moments(*(np.stack([getattr(site, key) for site in sites]) for key in ("count", "total", "squares")))
    alone = _spread_alone(every)
    candidates = np.flatnonzero((_far_from_rest(every, every.count.size) | alone).any(0) & ~every.binary.all(0))
    return {
        int(feature): _named(every[:, feature : feature + 1], every.count.size, np.flatnonzero(alone[:, feature]))
        for feature in candidates
    }


def _far_from_rest(every: Moments, comparisons: int) -> NDArray[np.bool_]:
    """Return whether each feature's mean is far from the other sites', shape (sites, F)."""
    whole = Moments(every.count.sum(0), every.total.sum(0), every.squares.sum(0))
    return far(every, whole - every, comparisons)


def _named(every: Moments, comparisons: int, alone: NDArray[np.int64]) -> list[int]:
    """Return the sites at which a single feature is far; shape of the moments (sites, 1)."""
    named, left = {*alone.tolist()}, np.arange(len(every.count))
    while len(found := np.flatnonzero(_far_from_rest(rest := every[left], comparisons)[:, 0])):
        if len(left) == 2:
            return sorted({*named, *left.tolist()})
        whole = Moments(rest.count.sum(0), rest.total.sum(0), rest.squares.sum(0)) - rest
        low = np.minimum(rest.spread, whole.spread)
        apart = np.abs(rest.mean - whole.mean) / np.maximum(low, _ROUNDING * np.abs(rest.mean - whole.mean))
        worst = found[np.argmax(apart[found, 0])]
        named.add(int(left[worst]))
        left = np.delete(left, worst)
    return sorted(named)


def _spread_alone(every: Moments) -> NDArray[np.bool_]:
    """Return whether each feature's spread is at most a tenth of all others', see above; shape (sites, F)."""
    spread = np.where(every.total**2 >= VALUES * every.squares, every.spread, 0.0)
    found = np.zeros(spread.shape, np.bool_)
    for feature, column in enumerate(spread.T):
        there = np.flatnonzero(column > 0)
        if len(there) <= PEERS:
            continue
        site, *others = there[np.argsort(column[there])]
        alike = column[others[-1]] <= ALIKE * column[others[0]] and column[others[0]] >= ALONE * column[site]
        found[site, feature] = alike and every.count[site, feature] >= every.count[others, feature].min()
    return found


class OutlierCounter:
    """Counts inference inputs outside the training range.

    At most a share of 1/k² of any values lies k standard deviations or more from their mean (Chebyshev). A feature is
    reported if significantly more of n new values do for some k of 10, 30, 100 and 1000, more than
    ``n/k² + 3 sqrt(n)/k``; or if their mean is far from the training mean by the rule for sites.

    Parameters
    ----------
    mean, spread
        Shape (F,): mean and standard deviation of the training values.
    """

    def __init__(self, mean: Floats, spread: Floats) -> None:
        self.mean, self.spread = mean, spread
        binary = np.abs(spread**2 - mean * (1 - mean)) <= 1e-4 * mean  # features with values 0 and 1
        self._binary = binary & (mean > 0) & (mean < 1)
        self._sums = np.zeros((3, len(mean)))
        self._outside = np.zeros((len(FAR), 2, len(mean)))  # for each k the number of values and their sum

    def add(self, values: Floats) -> None:
        """Add rows, shape (n, F), NaN where missing."""
        there = ~np.isnan(values)
        known = np.where(there, values, 0.0)
        self._sums += np.stack([there.sum(0), known.sum(0), (known**2).sum(0)])
        there &= ~(self._binary & ((values == 0) | (values == 1)))
        for sums, k in zip(self._outside, FAR, strict=True):
            outside = there & (np.abs(known - self.mean) >= k * self.spread)
            sums += np.stack([outside.sum(0), np.where(outside, values, 0.0).sum(0)])

    def found(self) -> dict[int, tuple[int, int, float]]:
        """Return the number of far values, of all values, and their mean, for each far feature by its index."""
        own, training = Moments(*self._sums), self._training()
        k = FAR[:, None]
        many = self._outside[:, 0] > own.count / k**2 + 3 * np.sqrt(own.count) / k
        first, shifted = many.argmax(0), far(own, training, len(self.mean))
        found: dict[int, tuple[int, int, float]] = {}
        for feature in np.flatnonzero(many.any(0) | shifted).tolist():
            of = int(own.count[feature])
            count, total = self._outside[first[feature], :, feature]
            found[feature] = (of, of, own.mean[feature]) if shifted[feature] else (int(count), of, float(total / count))
        return found

    def _training(self) -> Moments:
        """Return moments with the training mean and spread, for a large number of values."""
        count = np.full(len(self.mean), MANY)
        total = count * self.mean
        squares = np.where(self._binary, total, count * (self.mean**2 + self.spread**2))
        return Moments(count, total, squares)
