"""Intervals of average precision, and bands of curves, by the bootstrap (Efron and Tibshirani, 1993, chapter 8).

A patient counts by class and bin alone. So a site's patients are drawn anew by drawing counts from the multinomial
distribution of the site's own, and nobody has to ask the site. Where patients have several samples, as many fewer are
drawn as the design effect says, each counting for so many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evidence.curves import GRID, above, average_precision
from evidence.grid import Counts
from evidence.intervals import LEVEL
from evidence.sums import added

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evidence.sums import Floats, Ints

REPLICATES = 400
CELLS = 1024
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


@dataclass(frozen=True, eq=False)
class Replicates:
    """Counts drawn anew: of the positives and of the negatives, shape (`REPLICATES`, cells)."""

    positives: Floats
    negatives: Floats

    @classmethod
    def of_site(
        cls, counts: Counts, random: np.random.Generator, design: float = 1.0, total: Counts | None = None
    ) -> Replicates:
        """Draw the patients of one site; the cells are those of a ``total``, if there is one."""
        place, many = _cells(counts if total is None else total)
        if total is not None:
            place = place[counts.places_in(total)]
        samples = np.concatenate([counts.positives, counts.negatives])
        cells, of = np.unique(np.concatenate([place, place + many])[samples > 0], return_inverse=True)
        drawn = np.zeros((REPLICATES, 2 * many))
        if len(cells):
            shares = added(samples[samples > 0], of, len(cells))
            size = max(1, round(shares.sum() / design))
            drawn[:, cells] = random.multinomial(size, shares / shares.sum(), REPLICATES) * (shares.sum() / size)
        return cls(drawn[:, :many], drawn[:, many:])

    def average_precision(self) -> tuple[float, float]:
        """Return the ends of the percentile interval of average precision; NaN where most draws lack a class."""
        some = (self.positives.sum(-1) > 0) & (self.negatives.sum(-1) > 0)
        if 2 * some.sum() < REPLICATES:
            return float("nan"), float("nan")
        low, high = np.quantile(average_precision(self.positives[some], self.negatives[some]), ENDS)
        return float(low), float(high)

    def roc_band(self) -> tuple[Floats, Floats]:
        """Return the ends of the interval of the true positive rate at each false positive rate of `GRID`."""
        tp, fp = (np.pad(counts, ((0, 0), (1, 0))) for counts in above(self.positives, self.negatives))
        return _band(fp / np.maximum(fp[:, -1:], 1), tp / np.maximum(tp[:, -1:], 1))

    def precision_band(self) -> tuple[Floats, Floats]:
        """Return the ends of the interval of precision at each recall of `GRID`."""
        tp, fp = above(self.positives, self.negatives)
        return _band(tp / np.maximum(tp[:, -1:], 1), tp / np.maximum(tp + fp, 1))


def _cells(total: Counts) -> tuple[Ints, int]:
    """Return the cell of each bin, and how many there are: no more than 400 replicates have use for."""
    if len(total.bins) <= CELLS:
        return np.arange(len(total.bins)), len(total.bins)
    along = sum(np.cumsum(own) / max(own.sum(), 1.0) for own in (total.positives, total.negatives))
    _, cell = np.unique((along * (CELLS / 2 - 1)).astype(np.int64), return_inverse=True)
    return cell, int(cell[-1]) + 1


def _band(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    curves = [np.interp(GRID, one, other) for one, other in zip(x, y, strict=True)]
    low, high = np.quantile(curves, ENDS, axis=0)
    return low, high


def drawn_anew(
    sites: Sequence[Counts], design: Sequence[float], random: np.random.Generator
) -> tuple[list[tuple[float, float]], Replicates, Replicates]:
    """Draw the patients of all sites.

    Parameters
    ----------
    sites : sequence of Counts
        At least one.
    design : sequence of float
        Each site's design effect, see `evidence.delong.design_effect`.
    random : numpy.random.Generator
        Where draws come from.

    Returns
    -------
    list of (float, float)
        Each site's interval of average precision.
    Replicates
        All patients, of the sites that there are: what other patients of these sites would have shown.
    Replicates
        All patients, of sites that are drawn anew as well, each once, more often, or not: other sites, too.
    """
    times = random.multinomial(len(sites), np.full(len(sites), 1 / len(sites)), REPLICATES).astype(np.float64)
    total = Counts.total(sites)
    own, sums = [], np.zeros((2, 2, REPLICATES, _cells(total)[1]))
    for place, (counts, effect) in enumerate(zip(sites, design, strict=True)):
        replicates = Replicates.of_site(counts, random, effect, total)
        own.append(replicates.average_precision())
        for kind, part in enumerate((replicates.positives, replicates.negatives)):
            sums[0, kind] += part
            sums[1, kind] += part * times[:, [place]]
    return own, Replicates(*sums[0]), Replicates(*sums[1])
