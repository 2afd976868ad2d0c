"""AUROC and its variance (DeLong, DeLong and Clarke-Pearson, Biometrics 44, 1988), from placements.

The placement of a positive is the share of negatives with a lower score, a tie counting half; that of a negative is the
share of positives with a higher one. AUROC is the mean placement of either class; the variances of both give its
variance. A placement depends only on a sample's class and score, so the counts of each class at each score suffice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.evidence.grid import Counts, SiteCounts
from edelweiss.evidence.sums import sum_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.evidence.sums import Floats, Ints


@dataclass(frozen=True)
class Auroc:
    """An AUROC (NaN without both classes) and its variance (NaN if a class has one patient)."""

    value: float
    variance: float


def binned_placements(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return a positive's and a negative's placement in each bin, from the lowest scores up; both classes occur."""
    below, above = np.cumsum(negatives) - negatives, positives.sum() - np.cumsum(positives)
    return (below + negatives / 2) / negatives.sum(), (above + positives / 2) / positives.sum()


def from_counts(sites: Sequence[Counts], design: Sequence[float] | None = None) -> Auroc:
    """Compute the pooled AUROC of several sites with DeLong's variance.

    A site may lack a class. Without a design effect for each, see `evidence.design`, it is 1.
    """
    sites = SiteCounts(sites)
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
    """Compute samples' exact placements in O(n log n) (Sun and Xu, IEEE SPL 21, 2014); labels 1 and 0 both occur."""
    values, place = np.unique(scores, return_inverse=True)
    counts = sum_by(labels, place, len(values)), sum_by(1 - labels, place, len(values))
    of_positives, of_negatives = binned_placements(*counts)
    return np.asarray(np.where(labels == 1, of_positives[place], of_negatives[place]))


def exact(scores: Floats, labels: Floats, patients: Ints | None = None) -> Auroc:
    """Compute AUROC and its variance from samples.

    With several samples per patient the variance is that of Obuchowski, Biometrics 53 (1997), 567-578: placements are
    summed over each patient before squaring.

    Samples are as for `placements`; labels of one class give NaN. Patients, shape (n,), are numbered from 0; by default
    each sample is one.
    """
    if patients is None:
        values, place = np.unique(scores, return_inverse=True)
        counts = sum_by(labels, place, len(values)), sum_by(1 - labels, place, len(values))
        return from_counts([Counts(np.arange(len(values)), *counts)])
    positive = labels == 1
    if not (positive.any() and (~positive).any()):
        return Auroc(math.nan, math.nan)
    placed = placements(scores, labels)
    value = float(placed[positive].mean())
    return Auroc(value, covariance(placed - value, placed - value, labels, patients))


def covariance(one: Floats, other: Floats, labels: Floats, patients: Ints) -> float:
    """Compute the covariance of two AUROCs on the same samples; of an AUROC with itself, its variance.

    `one` and `other` are the samples' placements less the AUROC, for each of two models; labels and patients are as for
    `exact`. NaN if a class has fewer than two patients.
    """
    many = int(patients.max()) + 1

    def sums(values: Floats, label: int) -> Floats:
        """Sum the values of each patient's samples of a class, divided by the class size."""
        of_class = labels == label
        return np.asarray(sum_by(np.where(of_class, values, 0.0), patients, many) / of_class.sum())

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
    """Compute the AUROCs of two models on the same samples and their covariance."""
    found = exact(one, labels, patients), exact(other, labels, patients)
    if math.isnan(found[0].value):
        return *found, math.nan
    patient_of = np.arange(len(labels)) if patients is None else patients
    centred = [placements(scores, labels) - auroc.value for scores, auroc in zip((one, other), found, strict=True)]
    return *found, covariance(centred[0], centred[1], labels, patient_of)
