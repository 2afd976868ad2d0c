"""Features that are in another unit somewhere: found in counts, sums and sums of squares, as sites send them.

A unit changes a feature's mean by far more than hospitals differ. With mean m and spread s (standard deviation) of a
site's n values, and the same of the other sites' N values together, a feature is *far* if

1. the means are far apart: ``|m - M| >= 2.5 max(s, S)``; or both mean and spread are: ``|m - M| >= 2.5 min(s, S)``,
   where one spread is four times the other, or more; and
2. that is no chance: ``|m - M| >= t max(s, S) sqrt(1/n + 1/N)``, with t the quantile of Student's distribution with
   ``min(n, N) - 1`` degrees of freedom that a share of 0.01 / (2 x features x sites) is above (Bonferroni).

The larger spread is what makes that hold for skewed features, too: a rare large value moves the mean of its site, and
the spread along with it; where a small site has none by chance, the others' spread has them.

A spread alone is far if it is a tenth of each other site's, or less, where three or more others have spreads within a
factor of three of each other, the site has as many values as one of them, and everywhere ``total² / squares`` is 30 or
more: that many values make the sum, at least. One that is larger alone may be a single value's work, and three sums do
not tell.

Features that are 0 or 1 at all sites have no unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ALARMS = 0.01  # false ones in so many runs on sites that are alike, at most
FEWEST = 10  # values of a side: fewer may all be the same by chance
APART, TIMES = 2.5, 4.0  # means in spreads; one spread in the other
ALONE, ALIKE, PEERS, VALUES = 10.0, 3.0, 3, 30  # of a spread alone
FAR, MANY = np.array([10.0, 30.0, 100.0, 1000.0]), 1e6  # spreads from the mean; values of an unknown training set
_ROUNDING = 1e-12  # of a mean square: a variance below this share of it is none


@dataclass(frozen=True)
class Moments:
    """Sums over values, an entry for each of some features: how many, their sum, the sum of their squares.

    Attributes
    ----------
    count, total, squares : ndarray
        Shape (..., F), float64; as `datasets.moments` returns them.
    """

    count: Floats
    total: Floats
    squares: Floats

    @property
    def mean(self) -> Floats:
        """Shape (..., F); 0 where there is no value."""
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
        """Whether all values are 0 or 1, shape (..., F): of whole numbers none else are their own squares."""
        same: NDArray[np.bool_] = self.total == self.squares
        return same

    def __getitem__(self, place: Any) -> Moments:
        return Moments(self.count[place], self.total[place], self.squares[place])

    def __sub__(self, other: Moments) -> Moments:
        return Moments(self.count - other.count, self.total - other.total, self.squares - other.squares)


def rounded(value: float, digits: int = 3) -> str:
    """Write a value of a feature in some digits; without an exponent from 0.0001 up to a million."""
    return f"{float(f'{value:.{digits}g}'):g}"


def far(own: Moments, others: Moments, comparisons: int) -> NDArray[np.bool_]:
    """Return which means are far from the others', by the rule above; features as columns.

    ``comparisons`` are made in all, this one and those beside it.
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
    """Return for each feature that is far at some sites which these are; sites count from 0, each feature a number.

    One that is far makes the others seem so, as it is among those that they are held against: so the farthest is put
    aside, and the rest are looked at again. Of two sites both are named.
    """
    every = Moments(*(np.stack([getattr(site, key) for site in sites]) for key in ("count", "total", "squares")))
    alone = _spread_alone(every)
    candidates = np.flatnonzero((_far_from_rest(every, every.count.size) | alone).any(0) & ~every.binary.all(0))
    return {
        int(feature): _named(every[:, feature : feature + 1], every.count.size, np.flatnonzero(alone[:, feature]))
        for feature in candidates
    }


def _far_from_rest(every: Moments, comparisons: int) -> NDArray[np.bool_]:
    """Return at which sites a feature's mean is far from the other sites'; shape (sites, F)."""
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
    """Return at which sites a feature's spread is a tenth of all others', see above; shape (sites, F)."""
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
    """Watches values that a finished model is given, whether they could be of patients such as it was trained on.

    Of any values a share of 1/k² at most lies k standard deviations or more from their mean (Chebyshev). A feature is
    named where more of n new values do, for a k of 10, 30, 100 or 1000: more than ``n/k² + 3 sqrt(n)/k``, which chance
    does not explain; or where their mean is far from the training's by the rule for sites.

    Parameters
    ----------
    mean, spread
        Shape (F,): of the values that the model was trained on.
    """

    def __init__(self, mean: Floats, spread: Floats) -> None:
        self.mean, self.spread = mean, spread
        binary = np.abs(spread**2 - mean * (1 - mean)) <= 1e-4 * mean  # those of 0 and 1
        self._binary = binary & (mean > 0) & (mean < 1)
        self._sums = np.zeros((3, len(mean)))
        self._outside = np.zeros((len(FAR), 2, len(mean)))  # for each k how many values, and their sum

    def add(self, values: Floats) -> None:
        """Look at some rows: shape (n, F), NaN where missing."""
        there = ~np.isnan(values)
        known = np.where(there, values, 0.0)
        self._sums += np.stack([there.sum(0), known.sum(0), (known**2).sum(0)])
        there &= ~(self._binary & ((values == 0) | (values == 1)))
        for sums, k in zip(self._outside, FAR, strict=True):
            outside = there & (np.abs(known - self.mean) >= k * self.spread)
            sums += np.stack([outside.sum(0), np.where(outside, values, 0.0).sum(0)])

    def found(self) -> dict[int, tuple[int, int, float]]:
        """Return for each feature that is far, a number: how many values are, of how many, and their mean."""
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
        """Return sums with the training's mean and spread; of how many values is not told, so of as many as matter."""
        count = np.full(len(self.mean), MANY)
        total = count * self.mean
        squares = np.where(self._binary, total, count * (self.mean**2 + self.spread**2))
        return Moments(count, total, squares)
