"""Intervals: for a share, for an AUROC, for anything that is nearly normal. All at the level of `LEVEL`."""

from __future__ import annotations

import math
from typing import Any

LEVEL = 0.95
Z = 1.959963984540054  # the normal quantile at 1 - (1 - LEVEL) / 2

FEW = 10  # of a class: from fewer, DeLong's variance is too often too small (tests/evidence/test_delong.py)

Estimate = dict[str, Any]
"""``value``, ``low``, ``high``, and ``by``: the method of the interval. NaN where it is not defined."""


def estimate(value: float, low: float = math.nan, high: float = math.nan, by: str = "") -> Estimate:
    """Return an estimate with its interval."""
    return {"value": value, "low": low, "high": high, "by": by}


def normal(value: float, variance: float, by: str) -> Estimate:
    """Return the interval of a normal estimate; without ends where the variance is not defined."""
    margin = Z * math.sqrt(variance) if variance >= 0 else math.nan
    return estimate(value, value - margin, value + margin, by)


def wilson(hits: float, n: float) -> tuple[float, float]:
    """Return the interval of a share of ``hits`` among ``n`` (Wilson, JASA 22, 1927); NaN for nobody."""
    if not n > 0:
        return math.nan, math.nan
    share, z2 = hits / n, Z**2
    centre, margin = share + z2 / (2 * n), Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n**2))
    return max(0.0, (centre - margin) / (1 + z2 / n)), min(1.0, (centre + margin) / (1 + z2 / n))


def of_auroc(value: float, variance: float, positives: float, negatives: float) -> Estimate:
    """Return an AUROC with its interval.

    On the logit scale, where it stays within 0 and 1 and covers better near 1 (Pepe, The Statistical Evaluation of
    Medical Tests, 2003, eq. 5.9), by DeLong's variance. Where a class has fewer than `FEW` patients, or the ranking is
    perfect, which has a variance of zero, the interval is Newcombe's.

    Parameters
    ----------
    value, variance : float
        Of DeLong; NaN where a class is missing, or has one patient (the variance).
    positives, negatives : float
        Patients of each class; fewer than there are where patients count less than one each.
    """
    if math.isnan(value):
        return estimate(math.nan)
    if not (variance > 0 and 0 < value < 1 and min(positives, negatives) >= FEW):
        return estimate(value, *newcombe(value, positives, negatives), "Newcombe")
    middle, margin = math.log(value / (1 - value)), Z * math.sqrt(variance) / (value * (1 - value))
    return estimate(value, _expit(middle - margin), _expit(middle + margin), "DeLong")


def spread(value: float, variance: float, positives: float, negatives: float) -> float:
    """Return the variance for a mean of AUROCs: DeLong's, or that of a normal interval as wide as Newcombe's."""
    if variance > 0 and min(positives, negatives) >= FEW:
        return variance
    low, high = newcombe(value, positives, negatives)
    return ((high - low) / (2 * Z)) ** 2


def newcombe(value: float, positives: float, negatives: float) -> tuple[float, float]:
    """Return the AUROCs from which this one is just ``Z`` standard deviations away.

    Newcombe, Stat Med 25 (2006), method 5: the standard deviation of Hanley and McNeil at the true AUROC A, with the
    mean size of the classes in place of each.
    """
    size = (positives + negatives) / 2 - 1

    def away(a: float) -> float:
        pairs = 1 + size * ((1 - a) / (2 - a) + a / (1 + a))
        return abs(value - a) - Z * math.sqrt(a * (1 - a) * pairs / (positives * negatives))

    def end(outer: float) -> float:
        if abs(value - outer) < 1e-12:
            return outer
        near, far = value, outer  # away(near) <= 0 <= away(far)
        for _ in range(60):
            middle = (near + far) / 2
            near, far = (near, middle) if away(middle) > 0 else (middle, far)
        return far

    return end(0.0), end(1.0)


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
