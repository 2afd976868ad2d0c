"""Two models on the same patients: within each site, over all sites ranked together, and on a common test set."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.evidence.delong import from_counts
from edelweiss.evidence.grid import Counts
from edelweiss.evidence.intervals import normal
from edelweiss.evidence.paired import variance_of_difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.evidence.summary import Site


def compared(sites: Mapping[str, Site], test: Site | None) -> dict[str, Any] | None:
    """Compare two models: the mean of the sites' differences, whose variance is that of independent numbers."""
    by_site = {name: one for name, site in sites.items() if (one := _difference(site))}
    on_test, pooled = test and _difference(test), _pooled(list(sites.values()))
    if not by_site and not on_test and not pooled:
        return None
    known = [one for one in by_site.values() if one["variance"] >= 0]
    value = float(np.mean([one["difference"]["value"] for one in known])) if known else math.nan
    spread = sum(one["variance"] for one in known) / max(1, len(known)) ** 2
    degrees = sum(one["degrees"] for one in known)
    told = {name: _told(one) for name, one in by_site.items()}
    within = {"sites": len(known), **_tested(value, spread, degrees), "by-site": told}
    return {**within, "pooled": pooled, "common-test-set": on_test and _told(on_test)}


def _told(difference: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in difference.items() if key not in ("variance", "degrees")}


def _pooled(sites: Sequence[Site]) -> dict[str, Any] | None:
    """Compare two models on the patients of all sites that told of both; None where one of them told no spread."""
    told = [(site.counts, site.other_counts, site.spread) for site in sites if site.other_counts is not None]
    spreads = [spread for *_, spread in told if spread is not None]
    if not told or len(spreads) < len(told):
        return None
    own, other = Counts.total([own for own, *_ in told]), Counts.total([theirs for _, theirs, _ in told if theirs])
    ours, theirs = from_counts([own]).value, from_counts([other]).value
    positives, negatives = own.sizes
    degrees = np.sum([one.patients[:2] for one in spreads], axis=0).min() - 1
    tested = _tested(ours - theirs, variance_of_difference(own.sizes, spreads), float(degrees))
    of = {"sites": len(told), "n": int(positives + negatives), "positives": int(positives)}
    return {**of, "auroc": ours, "other": theirs, **tested}


def _difference(site: Site) -> dict[str, Any] | None:
    if site.other is None or math.isnan(site.other.value) or site.auroc is None:
        return None
    variance = site.auroc.variance + site.other.variance - 2 * site.covariance
    variance = max(0.0, variance) if not math.isnan(variance) else variance
    degrees = min(site.counts.sizes) / site.design.largest - 1  # about as many patients as the rarer class has
    tested = _tested(site.auroc.value - site.other.value, variance, degrees)
    return {"auroc": site.auroc.value, "other": site.other.value, **tested, "variance": variance, "degrees": degrees}


def _tested(difference: float, variance: float, degrees: float) -> dict[str, Any]:
    """Return a difference with its interval and the two-sided p-value of none.

    Both are by Student's t: the variance rests on the few patients of the rarer class. Where both models place every
    patient alike, the variance is 0. That is no certainty, so there is neither.
    """
    from scipy.special import stdtr  # it takes a while to import

    known, degrees = variance if variance > 0 else math.nan, max(1.0, degrees)
    p = 2 * float(stdtr(degrees, -abs(difference) / math.sqrt(known))) if variance > 0 else math.nan
    found = normal(difference, known, "DeLong", degrees)
    ends = {"low": max(-1.0, found["low"]), "high": min(1.0, found["high"])} if variance > 0 else {}
    return {"difference": found | ends, "p": p}
