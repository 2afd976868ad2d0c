"""Counts of scores on a grid of bins that follows the scores.

Bins of equal width would put the few high scores of a rare outcome into one. So each site tells at which scores its
samples of each class could be cut into equal parts, and the coordinator makes one grid of all cuts, on which the sites
count. Where all scores together have no more values than there are bins, each value has a bin of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evidence.sums import added

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evidence.sums import Floats, Ints

BINS = 256
CLASSES = ("positives", "negatives")


@dataclass(frozen=True, eq=False)
class Sketch:
    """Where the scores of a site lie.

    Attributes
    ----------
    positives, negatives : ndarray
        Scores that cut those of each class into equal parts, ascending, from the lowest to the highest; at most `BINS`.
        All values that there are, where these are no more.
    weights : (ndarray, ndarray)
        How many samples each of them stands for.
    """

    positives: Floats
    negatives: Floats
    weights: tuple[Floats, Floats]

    @classmethod
    def of(cls, scores: Floats, labels: Floats) -> Sketch:
        """Sketch samples."""
        positives, negatives = (scores[labels == label] for label in (1, 0))
        return cls.told(_equal_parts(positives), _equal_parts(negatives), len(positives), len(negatives))

    @classmethod
    def told(cls, positives: Floats, negatives: Floats, p: float, n: float) -> Sketch:
        """Return the sketch of p positives and n negatives with these cuts."""
        parts = tuple(np.full(len(cuts), count / max(1, len(cuts))) for cuts, count in ((positives, p), (negatives, n)))
        return cls(positives, negatives, (parts[0], parts[1]))


def _equal_parts(scores: Floats) -> Floats:
    ordered = np.sort(scores)
    values = ordered[np.diff(ordered, prepend=-np.inf) > 0]
    if len(values) <= BINS:
        return values
    return np.unique(ordered[np.append(np.arange(BINS - 1) * len(ordered) // (BINS - 1), len(ordered) - 1)])


def common_cuts(sketches: Sequence[Sketch], bins: int = BINS) -> Floats:
    """Return the lower ends of the bins of a grid, ascending; at least one.

    Of all cuts of all sites those are taken that part both classes and the range of the scores most equally, all three
    with the same weight: the classes for what follows from ranks, the range for what follows from values.
    """
    points, place = np.unique(
        np.concatenate([cuts for sketch in sketches for cuts in (sketch.positives, sketch.negatives)]),
        return_inverse=True,
    )
    if len(points) <= bins:
        return points if len(points) else np.zeros(1)
    totals = [sum(float(sketch.weights[kind].sum()) for sketch in sketches) for kind in (0, 1)]
    weights = [weight / (total or 1.0) for sketch in sketches
               for weight, total in zip(sketch.weights, totals, strict=True)]  # fmt: skip
    apart = np.diff(points, prepend=points[0]) / (points[-1] - points[0])
    below = np.cumsum(added(np.concatenate(weights), place, len(points)) + apart)
    chosen = np.searchsorted(below, np.arange(bins) * below[-1] / bins, side="right")
    chosen = np.unique(np.minimum(chosen, len(points) - 1))
    # A bin that began at a positive's own score would have it below all others in the bin.
    return np.asarray((points[chosen] + points[np.maximum(chosen - 1, 0)]) / 2)


def bins_of(scores: Floats, cuts: Floats) -> Ints:
    """Return the bin of each score on the grid with these cuts; what lies below the first is in the first."""
    return np.maximum(np.searchsorted(cuts, scores, side="right") - 1, 0).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Counts:
    """Samples of each class in each bin, shape (bins,), and the sums of the scores in it."""

    positives: Floats
    negatives: Floats
    sums: Floats

    @classmethod
    def of(cls, scores: Floats, labels: Floats, cuts: Floats) -> Counts:
        """Count samples on the grid with these cuts."""
        bins = bins_of(scores, cuts)
        return cls(*(added(values, bins, len(cuts)) for values in (labels, 1 - labels, scores)))

    @classmethod
    def total(cls, sites: Sequence[Counts]) -> Counts:
        """Add up what was counted on one grid."""
        positives, negatives = (np.sum([getattr(one, kind) for one in sites], axis=0) for kind in CLASSES)
        return cls(positives, negatives, np.sum([one.sums for one in sites], axis=0))

    def without(self, others: Counts) -> Counts:
        """Take away what was counted on the same grid, and is among this."""
        left = [getattr(self, kind) - getattr(others, kind) for kind in (*CLASSES, "sums")]
        return Counts(left[0], left[1], np.where(left[0] + left[1] > 0, left[2], 0.0))

    @property
    def every(self) -> Floats:
        """Samples of both classes in each bin."""
        return self.positives + self.negatives

    def placed(self, cuts: Floats) -> Counts:
        """Put each bin's samples where their mean score lies on another grid."""
        bins = bins_of(self.centres(), cuts)
        return Counts(*(added(values, bins, len(cuts)) for values in (self.positives, self.negatives, self.sums)))

    def centres(self) -> Floats:
        """Return the mean score of each bin; 0 where there is nobody."""
        return self.sums / np.maximum(self.every, 1)
