"""Design effects: the factor by which a variance grows because patients have several samples.

Samples of one patient are correlated, by an amount that depends on the estimate, so each kind of estimate has its own
design effect: the ratio of squared sums per patient (Liang and Zeger, Biometrika 73, 1986) to squares per sample. Each
site computes its own, so that the coordinator, which knows only counts, can scale each site's part of a variance. If
every sample of a patient occurs k times, each effect is k, and intervals equal those with one sample per patient.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.evidence.calibration import GROUPS, UNDEFINED, deciles, logistic, probability
from edelweiss.evidence.curves import FIXED, average_precision_influence, threshold, threshold_of_sensitivity
from edelweiss.evidence.delong import placements
from edelweiss.evidence.sums import sum_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.evidence.sums import Floats, Ints, Mask


ROUNDING = 1e-5  # share of squares below which a patient's contributions cancel, as in a fit to two patients


@dataclass(frozen=True)
class Design:
    """The design effects of a site; 1 if each patient has one sample."""

    # auroc, auprc: for AUROC and average precision
    auroc: float = 1.0
    auprc: float = 1.0
    # intercept, slope, curve: for calibration in the large, the calibration slope, and the share of positives in a
    # decile of the predictions
    intercept: float = 1.0
    slope: float = 1.0
    curve: float = 1.0
    # sensitivity, specificity: for these shares at a threshold: the mean over `evidence.curves.FIXED`
    sensitivity: float = 1.0
    specificity: float = 1.0
    largest: float = 1.0  # the upper bound, see `largest_effect`

    @classmethod
    def uniform(cls, effect: float) -> Design:
        """Return the same effect for every estimate."""
        return cls(*[effect] * len(fields(cls)))

    @classmethod
    def of(cls, scores: Floats, labels: Floats, patients: Ints | None) -> Design:
        """Compute the design effects of a site's samples.

        An effect that cannot be estimated (one class only, a perfect ranking) is set to its upper bound.

        Scores and labels, 1 and 0, have shape (n,); patients are numbered from 0, by default one per sample.
        """
        if patients is None:
            return SINGLE
        positive = labels == 1
        if not (positive.any() and (~positive).any()):
            return cls.uniform(largest_effect(patients))
        values, place = np.unique(scores, return_inverse=True)
        p, n = sum_by(labels, place, len(values)), sum_by(1 - labels, place, len(values))
        of_positives, of_negatives = average_precision_influence(p, n)
        fit = logistic(values, p, n)
        if fit is UNDEFINED:
            intercept = slope = largest_effect(patients)
        else:
            risk = probability(fit.log_odds(scores))
            weights = risk * (1 - risk)
            intercept = effect(labels - risk, patients)
            slope = effect((labels - risk) * (scores - weights @ scores / weights.sum()), patients)
        decile = deciles(p + n)[place]
        shares = [np.flatnonzero(decile == group) for group in range(GROUPS)]
        return cls(
            _auroc_effect(scores, labels, patients),
            effect(np.where(positive, of_positives[place], of_negatives[place]), patients, positive),
            intercept,
            slope,
            float(np.mean([_share_effect(labels[rows], patients[rows]) for rows in shares if len(rows)])),
            _at_points(scores[positive], patients[positive], [threshold(scores, labels, at) for at in FIXED]),
            _at_points(
                scores[~positive], patients[~positive], [threshold_of_sensitivity(scores, labels, at) for at in FIXED]
            ),
            largest_effect(patients),
        )

    @staticmethod
    def of_group(scores: Floats, labels: Floats, patients: Ints | None, at: float) -> tuple[float, float, float, float]:
        """Compute a subgroup's effects for AUROC, sensitivity and specificity at a threshold, and the upper bound."""
        if patients is None:
            return 1.0, 1.0, 1.0, 1.0
        high = (scores >= at).astype(float)  # a share and its complement have the same effect
        shares = [
            _share_effect(high[labels == label], patients[labels == label]) if (labels == label).any() else 1.0
            for label in (1, 0)
        ]
        return _auroc_effect(scores, labels, patients), shares[0], shares[1], largest_effect(patients)

    def values(self) -> list[float]:
        """Return the effects in the order of the fields."""
        return [*astuple(self)]


SINGLE = Design()
"""For patients with one sample each."""


def effect(values: Floats, patients: Ints, rarer: Mask | None = None) -> float:
    """Compute the design effect of a sum of ``values`` with mean 0; its upper bound if it cannot be estimated.

    Values and patients are the contribution and the patient of each of n > 0 samples; `rarer`, by default all, marks
    those that dominate the variance.
    """
    sums = sum_by(values, patients, int(patients.max()) + 1)
    those = patients if rarer is None else patients[rarer]
    many, squares, clustered = int(np.count_nonzero(np.bincount(those))), float(values @ values), float(sums @ sums)
    if many < 2 or not (squares > 0 and clustered > ROUNDING * squares):
        return largest_effect(patients)
    # Both sums are about the mean of these samples, which makes them too small by 1 / many and by effect / n.
    corrected = clustered / squares * many / (many - 1)
    return corrected / (1 + corrected / len(those))


def largest_effect(patients: Ints) -> float:
    """Return the upper bound of a design effect, reached if all samples of a patient are identical."""
    sizes = np.bincount(patients).astype(float)
    return float(sizes @ sizes / sizes.sum())


def _auroc_effect(scores: Floats, labels: Floats, patients: Ints) -> float:
    if not 0 < labels.sum() < len(labels):
        return largest_effect(patients)
    placed, positive = placements(scores, labels), labels == 1
    values = np.where(positive, placed / positive.sum(), placed / (~positive).sum())
    values -= np.where(positive, values[positive].mean(), values[~positive].mean())
    return effect(values, patients, positive if positive.mean() <= 0.5 else ~positive)


def _share_effect(hits: Floats, patients: Ints) -> float:
    return effect(hits - hits.mean(), patients)


def _at_points(scores: Floats, patients: Ints, thresholds: Sequence[float]) -> float:
    return float(np.mean([_share_effect((scores >= at).astype(float), patients) for at in thresholds]))
