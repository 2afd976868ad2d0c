"""Class counts in the occupied bins of `problems.histogram`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.evidence.sums import sum_by
from edelweiss.problems.histogram import Histogram, bins_of, scores_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.evidence.sums import Floats, Ints

CLASSES = ("positives", "negatives")


@dataclass(frozen=True, eq=False)
class Counts:
    """The occupied bins, ascending, and the counts of each class; all of shape (occupied,)."""

    bins: Ints
    positives: Floats
    negatives: Floats

    @classmethod
    def of(cls, scores: Floats, labels: Floats) -> Counts:
        """Count samples by bin; labels are 1 for positive and 0 for negative."""
        bins, place = np.unique(bins_of(scores), return_inverse=True)
        return cls(bins, sum_by(labels, place, len(bins)), sum_by(1 - labels, place, len(bins)))

    @classmethod
    def of_histograms(cls, positives: Histogram, negatives: Histogram) -> Counts:
        """Combine the histograms of the two classes."""
        bins = np.union1d(positives.bins, negatives.bins)
        both = [
            sum_by(own.counts.astype(np.float64), np.searchsorted(bins, own.bins), len(bins))
            for own in (positives, negatives)
        ]
        return cls(bins, both[0], both[1])

    @classmethod
    def total(cls, sites: Sequence[Counts]) -> Counts:
        """Add up the counts of several sites."""
        if not sites:
            return cls(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        bins, place = np.unique(np.concatenate([one.bins for one in sites]), return_inverse=True)
        positives, negatives = (
            sum_by(np.concatenate([getattr(one, kind) for one in sites]), place, len(bins)) for kind in CLASSES
        )
        return cls(bins, positives, negatives)

    def places_in(self, total: Counts) -> Ints:
        """Return the index of each bin among those of a total that includes them."""
        return np.searchsorted(total.bins, self.bins).astype(np.int64)

    def among(self, total: Counts) -> bool:
        """Whether a total includes all of these samples."""
        place = np.minimum(self.places_in(total), len(total.bins) - 1)
        return len(total.bins) > 0 and bool(
            (total.bins[place] == self.bins).all()
            and all((getattr(total, kind)[place] >= getattr(self, kind)).all() for kind in CLASSES)
        )

    def histograms(self) -> tuple[Histogram, Histogram]:
        """Return the histograms of positives and negatives."""
        both = []
        for kind in CLASSES:
            counts = getattr(self, kind).astype(np.int64)
            both.append(Histogram(self.bins[counts > 0], counts[counts > 0]))
        return both[0], both[1]

    @property
    def every(self) -> Floats:
        """Samples of both classes in each bin."""
        return self.positives + self.negatives

    @property
    def sizes(self) -> tuple[float, float]:
        """Number of positives and of negatives."""
        return float(self.positives.sum()), float(self.negatives.sum())

    def centres(self) -> Floats:
        """Return the score of each bin."""
        return scores_of(self.bins)


class SiteCounts(tuple[Counts, ...]):
    """Counts of several sites, with cached totals."""

    def __new__(cls, sites: Sequence[Counts]) -> SiteCounts:
        """Return ``sites`` itself if it is one already."""
        return sites if isinstance(sites, SiteCounts) else super().__new__(cls, sites)

    @cached_property
    def total(self) -> Counts:
        """The pooled counts."""
        return self[0] if len(self) == 1 else Counts.total(self)

    @cached_property
    def places(self) -> list[Ints]:
        """For each site, the indices of its bins in the total."""
        return [one.places_in(self.total) for one in self]
