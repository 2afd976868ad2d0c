"""Intervals: for a share, for an AUROC, for average precision, for anything nearly normal. All at the level of `LEVEL`.

Where patients have several samples, an interval is that of as many patients as these samples are worth: `worth`.
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
MANY = 1e4  # degrees of freedom, from which an expansion has all digits
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)

FEW = 10  # of a class: from fewer, DeLong's variance is too often too small (tests/evidence/test_delong.py)

Estimate = dict[str, Any]
"""``value``, ``low``, ``high``, and ``by``: the method of the interval. NaN where it is not defined."""


def estimate(value: float, low: float = math.nan, high: float = math.nan, by: str = "") -> Estimate:
    """Return an estimate with its interval."""
    return {"value": value, "low": low, "high": high, "by": by}


def normal(value: float, variance: float, by: str, degrees: float = math.inf) -> Estimate:
    """Return the interval of a normal estimate, by Student's t where its variance has few degrees of freedom.

    It has no ends where the variance is not defined.
    """
    margin = student(degrees) * math.sqrt(variance) if variance >= 0 else math.nan
    return estimate(value, value - margin, value + margin, by)


@dataclass(frozen=True)
class Worth:
    """What a class of samples is worth for a number, where patients may have several: see `worth`.

    Attributes
    ----------
    independent : float
        How many samples of as many patients would say as much.
    factor : float
        How many times as large the variance is to be taken, because among so few patients it is itself uncertain.
    patients : float
        How many patients they are of.
    """

    independent: float
    factor: float
    patients: float


def worth(sizes: Sequence[float], design: Sequence[float], largest: Sequence[float]) -> Worth:
    """Return what the samples of some sites are worth together.

    A variance that was found among few patients is too small too often. Student's quantiles say by how much: those of
    as many degrees of freedom as there are patients, over those that so many independent samples would have (Korn and
    Graubard, Survey Methodology 24, 1998). It makes no difference where samples of a patient are all alike, or single.

    Parameters
    ----------
    sizes : sequence of float
        For each site its samples of a class.
    design, largest : sequence of float
        For each site how many times as large its part of the variance is, and could be at most, see `evidence.design`.
    """
    total = float(sum(sizes))
    if not total:
        return Worth(0.0, 1.0, 0.0)
    independent, patients = (total**2 / float(np.dot(sizes, of)) for of in (design, largest))
    factor = max(1.0, (student(patients - 1) / student(independent - 1)) ** 2) if patients < independent else 1.0
    return Worth(independent / factor, factor, patients)


@lru_cache(maxsize=4096)
def student(degrees: float) -> float:
    """Return the quantile of Student's t at 1 - (1 - LEVEL) / 2, with one degree of freedom at least.

    It is computed here because SciPy's import would take a third of a second of every run: by Newton's method on the
    integral of the density, and of many degrees by the expansion of Abramowitz and Stegun (26.7.5).
    """
    n = max(1.0, degrees)
    if math.isinf(n):
        return Z
    if n > MANY:
        return Z + (Z**3 + Z) / (4 * n) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * n * n)
    at_zero = math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(math.pi * n)
    found, step = Z, 1.0  # from below: the distribution is concave there, so no step goes too far
    while step > 1e-13 * found:
        nodes = np.append(found * (NODES + 1) / 2, found)
        density = at_zero * (1 + nodes**2 / n) ** (-(n + 1) / 2)
        step = float((LEVEL / 2 - found / 2 * (WEIGHTS @ density[:-1])) / density[-1])
        found += step
    return found


def wilson(share: Any, n: Any) -> tuple[Any, Any]:
    """Return the interval of a share of ``n`` (Wilson, JASA 22, 1927), numbers or arrays; NaN where ``n`` is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        z2 = Z**2 / np.where(np.asarray(n) > 0, n, np.nan)
        centre, margin = share + z2 / 2, np.sqrt(share * (1 - share) * z2 + z2**2 / 4)
        return np.clip((centre - margin) / (1 + z2), 0.0, 1.0), np.clip((centre + margin) / (1 + z2), 0.0, 1.0)


def of_share(share: float, n: float) -> Estimate:
    """Return a share of ``n`` independent samples, which need not be a whole number, with Wilson's interval."""
    low, high = wilson(share, n)
    return estimate(share, float(low), float(high), "Wilson")


def recovered(value: Any, ends: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the interval of what depends on several independent numbers, from an interval for each.

    That is the method of variance estimates recovery (Zou and Donner, Stat Med 27, 2008). It needs no normal scale:
    of one number it is its own interval, and a mean stays where all of them stay.

    Parameters
    ----------
    value : float or ndarray
        What is estimated.
    ends : sequence of (low, high)
        What it would be at either end of the interval of one of the numbers, with all others as they are.
    """
    below, above = (sum((value - own[end]) ** 2 for own in ends) ** 0.5 for end in (0, 1))
    return value - below, value + above


def of_auroc(value: float, variance: float, positives: Worth, negatives: Worth) -> Estimate:
    """Return an AUROC with its interval.

    On the logit scale, where it stays within 0 and 1 and covers better near 1 (Pepe, The Statistical Evaluation of
    Medical Tests, 2003, eq. 5.9), by DeLong's variance and Student's quantile for the patients of the rarer class: that
    is what the variance mostly rests on. Where a class has fewer than `FEW` patients, or the ranking is perfect, which
    has a variance of zero, the interval is Newcombe's.

    Parameters
    ----------
    value, variance : float
        Of DeLong; NaN where a class is missing, or has one patient (the variance).
    positives, negatives : Worth
        What the samples of each class are worth.
    """
    if math.isnan(value):
        return estimate(math.nan)
    if not (variance > 0 and 0 < value < 1 and min(positives.patients, negatives.patients) >= FEW):
        return estimate(value, *newcombe(value, [(positives.independent, negatives.independent)]), "Newcombe")
    return estimate(value, *_on_logits(value, variance, min(positives.patients, negatives.patients)), "DeLong")


def of_mean_auroc(own: Sequence[tuple[Estimate, Worth, Worth]], weights: Sequence[float] | None = None) -> Estimate:
    """Return a mean of independent AUROCs with its interval.

    It is recovered from theirs. Those that have Newcombe's are taken together first: where many sites of few patients
    each are ranked perfectly, none says by itself how far from that it might be.

    Parameters
    ----------
    own : sequence of (Estimate, Worth, Worth)
        As `of_auroc` returned and got it; those that are defined.
    weights : sequence of float, optional
        Default: 1 each.
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
    low, high = recovered(value, [(ends[0], ends[1]) for ends in moved])
    return estimate(value, float(low), float(high), ", ".join(sorted({one["by"] for one, *_ in own})))


def of_average_precision(value: float, variance: float, positives: Worth) -> Estimate:
    """Return an average precision with its interval.

    On the logit scale (Boyd, Eng and Page, ECML PKDD 2013, section 4.1), as that of an AUROC. A perfect ranking has a
    variance of zero; then it is Wilson's: average precision is a mean of shares, the precisions at the positives.

    Parameters
    ----------
    value, variance : float
        The latter by `evidence.curves.average_precision_variance`.
    positives : Worth
        What the positives are worth.
    """
    if math.isnan(value):
        return estimate(math.nan)
    if not (variance > 0 and 0 < value < 1):
        return of_share(value, positives.independent)
    return estimate(value, *_on_logits(value, variance, positives.patients), "jackknife")


def _on_logits(value: float, variance: float, patients: float) -> tuple[float, float]:
    """Return the interval on the logit scale, with Student's quantile for so many patients."""
    middle, margin = math.log(value / (1 - value)), student(patients - 1) * math.sqrt(variance) / (value * (1 - value))
    return _expit(middle - margin), _expit(middle + margin)


def of_other_sites(value: float, variance: float, sites: int) -> tuple[float, float]:
    """Return the interval of an average precision whose variance was found among a few sites.

    It is Wilson's, of as many fewer samples as Student's t with ``sites`` - 1 degrees of freedom says (see `worth`).
    """
    if not variance > 0:
        return math.nan, math.nan
    low, high = wilson(value, value * (1 - value) / variance * (Z / student(sites - 1)) ** 2)
    return float(low), float(high)


def newcombe(
    value: float, sizes: Sequence[tuple[float, float]], weights: Sequence[float] | Floats = (1.0,)
) -> tuple[float, float]:
    """Return the AUROCs from which this one is just ``Z`` standard deviations away.

    Newcombe, Stat Med 25 (2006), method 5: the standard deviation of Hanley and McNeil at the true AUROC A, with the
    mean size of the classes in place of each. Of a mean of several, which share A, with these weights.

    Parameters
    ----------
    value : float
        The AUROC, or the mean.
    sizes : sequence of (float, float)
        Positives and negatives of each.
    weights : sequence of float
        Of each; they add up to 1.
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
