"""Confidence intervals for shares, AUROCs, average precisions and normal estimates, all at the level `LEVEL`.

Where patients have several samples, an interval uses the effective sample size, see `effective_size`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.evidence.sums import Floats

LEVEL = 0.95
Z = 1.959963984540054  # the normal quantile at 1 - (1 - LEVEL) / 2
MANY = 1e4  # degrees of freedom from which the asymptotic expansion is exact to double precision
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)

DELONG_MIN = 10  # patients per class below which DeLong's variance is too small (tests/evidence/test_delong.py)

Estimate = dict[str, Any]
"""``value``, ``low``, ``high``, and ``by``, the method of the interval. NaN where undefined."""


def estimate(value: float, low: float = math.nan, high: float = math.nan, by: str = "") -> Estimate:
    """Return an estimate with its interval."""
    return {"value": value, "low": low, "high": high, "by": by}


def normal_interval(value: float, variance: float, by: str, degrees: float = math.inf) -> Estimate:
    """Return a normal estimate with its interval, by Student's t; the ends are NaN if the variance is."""
    margin = t_quantile(degrees) * math.sqrt(variance) if variance >= 0 else math.nan
    return estimate(value, value - margin, value + margin, by)


@dataclass(frozen=True)
class EffectiveSize:
    """Effective sample size of a class for an estimate, see `effective_size`."""

    independent: float  # the equivalent number of independent samples
    factor: float  # inflation of the variance, which is itself uncertain with few patients
    patients: float  # number of patients


def effective_size(sizes: Sequence[float], design: Sequence[float], largest: Sequence[float]) -> EffectiveSize:
    """Compute the effective sample size of the pooled samples of several sites.

    A variance estimated from few patients is too often too small. It is inflated by the squared ratio of Student's
    quantiles: with the degrees of freedom of the patients, over those of as many independent samples (Korn and
    Graubard, Survey Methodology 24, 1998). With one sample per patient, or identical ones, the factor is 1.

    By site: samples of the class, its design effect and the upper bound of that, see `evidence.design`.
    """
    total = float(sum(sizes))
    if not total:
        return EffectiveSize(0.0, 1.0, 0.0)
    independent, patients = (total**2 / float(np.dot(sizes, of)) for of in (design, largest))
    factor = max(1.0, (t_quantile(patients - 1) / t_quantile(independent - 1)) ** 2) if patients < independent else 1.0
    return EffectiveSize(independent / factor, factor, patients)


@lru_cache(maxsize=4096)
def t_quantile(degrees: float) -> float:
    """Return the quantile of Student's t at 1 - (1 - LEVEL) / 2, with at least one degree of freedom.

    Newton's method on the integrated density; for many degrees the expansion of Abramowitz and Stegun (26.7.5).
    Computed here because importing SciPy costs every run a third of a second.
    """
    n = max(1.0, degrees)
    if math.isinf(n):
        return Z
    if n > MANY:
        return Z + (Z**3 + Z) / (4 * n) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * n * n)
    at_zero = math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(math.pi * n)
    found, step = Z, 1.0  # from below, where the distribution is concave, so that no step overshoots
    while step > 1e-13 * found:
        nodes = np.append(found * (NODES + 1) / 2, found)
        density = at_zero * (1 + nodes**2 / n) ** (-(n + 1) / 2)
        step = float((LEVEL / 2 - found / 2 * (WEIGHTS @ density[:-1])) / density[-1])
        found += step
    return found


def wilson(share: Any, n: Any) -> tuple[Any, Any]:
    """Compute Wilson's interval of a share of ``n`` (JASA 22, 1927), numbers or arrays; NaN where ``n`` is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        z2 = Z**2 / np.where(np.asarray(n) > 0, n, np.nan)
        centre, margin = share + z2 / 2, np.sqrt(share * (1 - share) * z2 + z2**2 / 4)
        return np.clip((centre - margin) / (1 + z2), 0.0, 1.0), np.clip((centre + margin) / (1 + z2), 0.0, 1.0)


def share_interval(share: float, n: float) -> Estimate:
    """Return a share of ``n`` independent samples (possibly fractional) with Wilson's interval."""
    low, high = wilson(share, n)
    return estimate(share, float(low), float(high), "Wilson")


def mover_interval(value: Any, ends: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Combine the intervals of independent numbers into that of a function of them.

    This is MOVER, the method of variance estimates recovery (Zou and Donner, Stat Med 27, 2008). It needs no normality:
    with one number the interval is unchanged, and the interval of a mean stays within the numbers' range.

    `ends` are the estimate with one of the numbers moved to either end of its interval, for each number.
    """
    below, above = (sum((value - own[end]) ** 2 for own in ends) ** 0.5 for end in (0, 1))
    return value - below, value + above


def auroc_interval(value: float, variance: float, positives: EffectiveSize, negatives: EffectiveSize) -> Estimate:
    """Return an AUROC with its interval.

    The interval is computed on the logit scale, where it stays within 0 and 1 and covers better near 1 (Pepe, The
    Statistical Evaluation of Medical Tests, 2003, eq. 5.9), from DeLong's variance and Student's quantile for the
    patients of the rarer class, which dominate the variance. If a class has fewer than `DELONG_MIN` patients, or the
    ranking is perfect (variance 0), the interval is Newcombe's.

    Value and variance are DeLong's: NaN if a class is missing, or (the variance) has one patient.
    """
    if math.isnan(value):
        return estimate(math.nan)
    if not (variance > 0 and 0 < value < 1 and min(positives.patients, negatives.patients) >= DELONG_MIN):
        return estimate(value, *newcombe(value, [(positives.independent, negatives.independent)]), "Newcombe")
    return estimate(value, *_on_logits(value, variance, min(positives.patients, negatives.patients)), "DeLong")


def mean_auroc_interval(
    own: Sequence[tuple[Estimate, EffectiveSize, EffectiveSize]], weights: Sequence[float] | None = None
) -> Estimate:
    """Return a mean of independent AUROCs with its interval, by MOVER.

    AUROCs with Newcombe's interval are combined first: if many small sites are ranked perfectly, no single interval
    shows how far from perfect the mean may be.

    `own` are the defined AUROCs with the effective sizes that `auroc_interval` received; weights are 1 by default.
    """
    if not own:
        return estimate(math.nan)
    shares = np.ones(len(own)) if weights is None else np.array(weights)
    shares = shares / shares.sum()
    value = float(shares @ [one["value"] for one, *_ in own])
    few = [place for place, (one, *_) in enumerate(own) if one["by"] == "Newcombe"]
    moved = [
        tuple(value + shares[place] * (one[end] - one["value"]) for end in ("low", "high"))
        for place, (one, *_) in enumerate(own)
        if place not in few
    ]
    if few:
        part = shares[few] / shares[few].sum()
        mean = float(part @ [own[place][0]["value"] for place in few])
        ends = newcombe(mean, [(own[place][1].independent, own[place][2].independent) for place in few], part)
        moved.append(tuple(value + shares[few].sum() * (end - mean) for end in ends))
    low, high = mover_interval(value, [(ends[0], ends[1]) for ends in moved])
    return estimate(value, float(low), float(high), ", ".join(sorted({one["by"] for one, *_ in own})))


def average_precision_interval(value: float, variance: float, positives: EffectiveSize) -> Estimate:
    """Return an average precision, with the variance of `evidence.curves.average_precision_variance`, and its interval.

    The interval is computed on the logit scale (Boyd, Eng and Page, ECML PKDD 2013, section 4.1), as for an AUROC. For
    a perfect ranking (variance 0) it is Wilson's, since average precision is a mean of shares.
    """
    if math.isnan(value):
        return estimate(math.nan)
    if not (variance > 0 and 0 < value < 1):
        return share_interval(value, positives.independent)
    return estimate(value, *_on_logits(value, variance, positives.patients), "jackknife")


def _on_logits(value: float, variance: float, patients: float) -> tuple[float, float]:
    """Compute the interval on the logit scale, with Student's quantile for this number of patients."""
    middle, margin = (
        math.log(value / (1 - value)),
        t_quantile(patients - 1) * math.sqrt(variance) / (value * (1 - value)),
    )
    return _expit(middle - margin), _expit(middle + margin)


def between_sites_interval(value: float, variance: float, sites: int) -> tuple[float, float]:
    """Compute the interval of an average precision from its variance between a few sites.

    Wilson's interval, with a sample size reduced by Student's t with ``sites`` - 1 degrees of freedom.
    """
    if not variance > 0:
        return math.nan, math.nan
    low, high = wilson(value, value * (1 - value) / variance * (Z / t_quantile(sites - 1)) ** 2)
    return float(low), float(high)


def newcombe(
    value: float, sizes: Sequence[tuple[float, float]], weights: Sequence[float] | Floats = (1.0,)
) -> tuple[float, float]:
    """Compute Newcombe's interval: the AUROCs from which this one is ``Z`` standard deviations away.

    Newcombe, Stat Med 25 (2006), method 5: the standard deviation of Hanley and McNeil at the true AUROC A, with each
    class size replaced by their mean. Extended to a weighted mean of several AUROCs with the same A.

    `sizes` are positives and negatives of each AUROC in the mean, whose weights sum to 1.
    """
    positives, negatives = np.array(sizes, float).T
    more = np.maximum(0.0, (positives + negatives) / 2 - 1)
    parts = np.asarray(weights) ** 2 / (positives * negatives)
    pairs, single = float(parts @ more), float(parts.sum())

    def away(a: float) -> float:
        variance = a * (1 - a) * (single + pairs * ((1 - a) / (2 - a) + a / (1 + a)))
        return abs(value - a) - Z * math.sqrt(variance)

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
