"""AUROC and its variance (DeLong, DeLong and Clarke-Pearson, Biometrics 44, 1988), from placements.

The placement of a positive is the share of negatives with a lower score, a tie counting half; that of a negative the
share of positives with a higher one. AUROC is the mean placement of either class, and its variance follows from the
variances of both. A placement depends on a sample's class and score alone. So with the counts of each class at each
score all sums and sums of squares follow, and are DeLong's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.evidence.grid import Counts, Together
from edelweiss.evidence.sums import added

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.evidence.sums import Floats, Ints


@dataclass(frozen=True)
class Auroc:
    """An AUROC, NaN without both classes; its variance, NaN for one patient of a class."""

    value: float
    variance: float


def binned_placements(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return the placements of a positive and of a negative in each bin.

    Parameters
    ----------
    positives, negatives : ndarray
        Counts, shape (bins,), from the lowest scores up; at least one of each.
    """
    below, above = np.cumsum(negatives) - negatives, positives.sum() - np.cumsum(positives)
    return (below + negatives / 2) / negatives.sum(), (above + positives / 2) / positives.sum()


def from_counts(sites: Sequence[Counts], design: Sequence[float] | None = None) -> Auroc:
    """Return the AUROC of the patients of all sites, ranked together, with DeLong's variance.

    Parameters
    ----------
    sites : sequence of Counts
        Of each site; one may have samples of one class only.
    design : sequence of float, optional
        For each site how many times as large its part of the variance is because patients have several samples, see
        `evidence.design`; default 1.
    """
    sites = Together(sites)
    total = sites.total
    positives, negatives = total.positives, total.negatives
    p, n = positives.sum(), negatives.sum()
    if not (p and n):
        return Auroc(math.nan, math.nan)
    of_positives, of_negatives = binned_placements(positives, negatives)
    value = float(positives @ of_positives / p)
    effects, sizes = np.ones(len(sites)) if design is None else np.array(design), np.array([own.sizes for own in sites])
    variance = 0.0
    for kind, size in enumerate((p, n)):
        independent = size**2 / float(sizes[:, kind] @ effects)
        if independent <= 1:
            return Auroc(value, math.nan)
        squares = ((of_positives, of_negatives)[kind] - value) ** 2 / size**2
        parts = [
            float((own.positives, own.negatives)[kind] @ squares[place])
            for own, place in zip(sites, sites.places, strict=True)
        ]
        variance += float(effects @ parts) * float(independent / (independent - 1))
    return Auroc(value, variance)


def placements(scores: Floats, labels: Floats) -> Floats:
    """Return each sample's placement, exactly, in the time of a sort (Sun and Xu, IEEE SPL 21, 2014).

    Parameters
    ----------
    scores : ndarray
        Shape (n,).
    labels : ndarray
        Shape (n,): 1 for positive and 0 for negative; at least one of each.
    """
    values, place = np.unique(scores, return_inverse=True)
    counts = added(labels, place, len(values)), added(1 - labels, place, len(values))
    of_positives, of_negatives = binned_placements(*counts)
    return np.asarray(np.where(labels == 1, of_positives[place], of_negatives[place]))


def exact(scores: Floats, labels: Floats, patients: Ints | None = None) -> Auroc:
    """Return AUROC and variance of samples, which may be several of a patient.

    Of clustered samples it is that of Obuchowski, Biometrics 53 (1997), 567-578: placements are summed over each
    patient before they are squared.

    Parameters
    ----------
    scores, labels : ndarray
        As for `placements`; labels of one class give NaN.
    patients : ndarray, optional
        Shape (n,): whose each sample is, numbered from 0; default: each is another's.
    """
    if patients is None:
        values, place = np.unique(scores, return_inverse=True)
        counts = added(labels, place, len(values)), added(1 - labels, place, len(values))
        return from_counts([Counts(np.arange(len(values)), *counts)])
    positive = labels == 1
    if not (positive.any() and (~positive).any()):
        return Auroc(math.nan, math.nan)
    placed = placements(scores, labels)
    value = float(placed[positive].mean())
    return Auroc(value, covariance(placed - value, placed - value, labels, patients))


def covariance(one: Floats, other: Floats, labels: Floats, patients: Ints) -> float:
    """Return the covariance of two AUROCs on the same samples; of one with itself its variance.

    Parameters
    ----------
    one, other : ndarray
        Shape (n,): the samples' placements less the AUROC, for each of two models.
    labels, patients : ndarray
        As for `exact`.

    Returns
    -------
    float
        NaN where fewer than two patients have a class.
    """
    many = int(patients.max()) + 1

    def sums(values: Floats, label: int) -> Floats:
        """Sum up each patient's samples of a class, as a share of all of that class."""
        of_class = labels == label
        return np.asarray(added(np.where(of_class, values, 0.0), patients, many) / of_class.sum())

    covariance, sizes = 0.0, []
    for label in (1, 0):
        size = int(np.count_nonzero(np.bincount(patients[labels == label])))
        sizes.append(size)
        covariance += size / max(1, size - 1) * float(sums(one, label) @ sums(other, label))
    if min(sizes) < 2:
        return math.nan
    between = sums(one, 1) @ sums(other, 0) + sums(one, 0) @ sums(other, 1)
    return covariance + many / (many - 1) * float(between)


def paired(one: Floats, other: Floats, labels: Floats, patients: Ints | None = None) -> tuple[Auroc, Auroc, float]:
    """Return the AUROCs of two models on the same samples, and their covariance, NaN like a variance.

    Parameters
    ----------
    one, other : ndarray
        Scores of the two, shape (n,).
    labels, patients : ndarray
        As for `exact`.
    """
    found = exact(one, labels, patients), exact(other, labels, patients)
    if math.isnan(found[0].value):
        return *found, math.nan
    whose = np.arange(len(labels)) if patients is None else patients
    centred = [placements(scores, labels) - auroc.value for scores, auroc in zip((one, other), found, strict=True)]
    return *found, covariance(centred[0], centred[1], labels, whose)
