"""Design effects: how many times as large a variance is because patients have several samples.

Samples of a patient are alike, and the more alike, the less they say. How much that is depends on what is estimated. So
there is an effect for each kind of number: what a patient's samples contribute to it is summed up before it is squared
(Liang and Zeger, Biometrika 73, 1986), and held against the squares of single samples. It is a site's own, so a
coordinator who knows counts alone can give each site's part of any variance its due. Where all samples of a patient
are the same k times over, each effect is k, and every interval is that of one sample each.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.evidence.calibration import GROUPS, NOTHING, logistic, probability, tenths
from edelweiss.evidence.curves import FIXED, average_precision_influence, threshold, threshold_of_sensitivity
from edelweiss.evidence.delong import placements
from edelweiss.evidence.sums import added

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.evidence.sums import Floats, Ints, Mask


ROUNDING = 1e-5  # a share of squares that is left where a patient's contributions cancel, as a fit's do of two patients


@dataclass(frozen=True)
class Design:
    """A site's design effects; 1 where each patient has one sample.

    Attributes
    ----------
    auroc, auprc : float
        Of the AUROC, and of average precision.
    intercept, slope, curve : float
        Of calibration in the large, of its slope, and of the share of positives in a tenth of the predictions.
    sensitivity, specificity : float
        Of these shares at a threshold: the mean of those at `evidence.curves.FIXED`.
    largest : float
        The largest that there could be, see `most`.
    """

    auroc: float = 1.0
    auprc: float = 1.0
    intercept: float = 1.0
    slope: float = 1.0
    curve: float = 1.0
    sensitivity: float = 1.0
    specificity: float = 1.0
    largest: float = 1.0

    @classmethod
    def alike(cls, effect: float) -> Design:
        """Return the same effect for all."""
        return cls(*[effect] * len(fields(cls)))

    @classmethod
    def of(cls, scores: Floats, labels: Floats, patients: Ints | None) -> Design:
        """Return those of a site's samples.

        Where an effect cannot be known, as of one class or a perfect ranking, it is the largest that there can be.

        Parameters
        ----------
        scores, labels : ndarray
            Shape (n,): labels are 1 and 0.
        patients : ndarray, optional
            Shape (n,): whose each sample is, numbered from 0; default: each is another's.
        """
        if patients is None:
            return SINGLE
        positive = labels == 1
        if not (positive.any() and (~positive).any()):
            return cls.alike(most(patients))
        values, place = np.unique(scores, return_inverse=True)
        p, n = added(labels, place, len(values)), added(1 - labels, place, len(values))
        of_positives, of_negatives = average_precision_influence(p, n)
        fit = logistic(values, p, n)
        if fit is NOTHING:
            intercept = slope = most(patients)
        else:
            risk = probability(fit.log_odds(scores))
            weights = risk * (1 - risk)
            intercept = effect(labels - risk, patients)
            slope = effect((labels - risk) * (scores - weights @ scores / weights.sum()), patients)
        tenth = tenths(p + n)[place]
        shares = [np.flatnonzero(tenth == group) for group in range(GROUPS)]
        return cls(
            _of_auroc(scores, labels, patients),
            effect(np.where(positive, of_positives[place], of_negatives[place]), patients, positive),
            intercept,
            slope,
            float(np.mean([_of_share(labels[rows], patients[rows]) for rows in shares if len(rows)])),
            _at_points(scores[positive], patients[positive], [threshold(scores, labels, at) for at in FIXED]),
            _at_points(
                scores[~positive], patients[~positive], [threshold_of_sensitivity(scores, labels, at) for at in FIXED]
            ),
            most(patients),
        )

    @staticmethod
    def of_group(scores: Floats, labels: Floats, patients: Ints | None, at: float) -> tuple[float, float, float, float]:
        """Return the effects of AUROC, sensitivity and specificity of a subgroup at a threshold, and the largest."""
        if patients is None:
            return 1.0, 1.0, 1.0, 1.0
        high = (scores >= at).astype(float)  # the effect of a share is that of the rest, so this does for both classes
        shares = [
            _of_share(high[labels == label], patients[labels == label]) if (labels == label).any() else 1.0
            for label in (1, 0)
        ]
        return _of_auroc(scores, labels, patients), shares[0], shares[1], most(patients)

    def told(self) -> list[float]:
        """Return them in the order of the fields."""
        return [*astuple(self)]


SINGLE = Design()
"""Of patients with one sample each."""


def effect(values: Floats, patients: Ints, rarer: Mask | None = None) -> float:
    """Return the design effect of a sum of ``values``, whose mean is 0; the largest there can be where it is unknown.

    Parameters
    ----------
    values, patients : ndarray
        Shape (n,), n > 0: what each sample contributes, and whose it is.
    rarer : ndarray, optional
        Shape (n,): those samples of whom the variance mostly consists; default: all.
    """
    sums = added(values, patients, int(patients.max()) + 1)
    those = patients if rarer is None else patients[rarer]
    many, squares, clustered = int(np.count_nonzero(np.bincount(those))), float(values @ values), float(sums @ sums)
    if many < 2 or not (squares > 0 and clustered > ROUNDING * squares):
        return most(patients)
    corrected = clustered / squares * many / (many - 1)  # both were taken less a mean of these very samples, which
    return corrected / (1 + corrected / len(those))  # makes them too small by 1 / many, and by effect / n


def most(patients: Ints) -> float:
    """Return the largest design effect that there can be: if all samples of a patient said the same."""
    sizes = np.bincount(patients).astype(float)
    return float(sizes @ sizes / sizes.sum())


def _of_auroc(scores: Floats, labels: Floats, patients: Ints) -> float:
    if not 0 < labels.sum() < len(labels):
        return most(patients)
    placed, positive = placements(scores, labels), labels == 1
    values = np.where(positive, placed / positive.sum(), placed / (~positive).sum())
    values -= np.where(positive, values[positive].mean(), values[~positive].mean())
    return effect(values, patients, positive if positive.mean() <= 0.5 else ~positive)


def _of_share(hits: Floats, patients: Ints) -> float:
    """Return the effect of a share."""
    return effect(hits - hits.mean(), patients)


def _at_points(scores: Floats, patients: Ints, thresholds: Sequence[float]) -> float:
    return float(np.mean([_of_share((scores >= at).astype(float), patients) for at in thresholds]))
