"""Comparison of two models on the same patients: within each site, pooled over sites, and on a common test set."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.evidence.delong import from_counts
from edelweiss.evidence.grid import Counts
from edelweiss.evidence.intervals import normal_interval
from edelweiss.evidence.paired import variance_of_difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.evidence.summary import Site


def compare_models(sites: Mapping[str, Site], test: Site | None) -> dict[str, Any] | None:
    """Compare two models: the mean of the sites' differences, treated as independent, and the other comparisons."""
    by_site = {name: one for name, site in sites.items() if (one := _difference(site))}
    on_test, pooled = test and _difference(test), _pooled(list(sites.values()))
    if not by_site and not on_test and not pooled:
        return None
    known = [one for one in by_site.values() if one["variance"] >= 0]
    value = float(np.mean([one["difference"]["value"] for one in known])) if known else math.nan
    spread = sum(one["variance"] for one in known) / max(1, len(known)) ** 2
    degrees = sum(one["degrees"] for one in known)
    shown = {name: _without_variance(one) for name, one in by_site.items()}
    within = {"sites": len(known), **_tested(value, spread, degrees), "by-site": shown}
    return {**within, "pooled": pooled, "common-test-set": on_test and _without_variance(on_test)}


def _without_variance(difference: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in difference.items() if key not in ("variance", "degrees")}


def _pooled(sites: Sequence[Site]) -> dict[str, Any] | None:
    """Compare two models on the pooled patients of all sites that reported both; None if a site reported no spread."""
    known = [(site.counts, site.other_counts, site.spread) for site in sites if site.other_counts is not None]
    spreads = [spread for *_, spread in known if spread is not None]
    if not known or len(spreads) < len(known):
        return None
    own, other = Counts.total([own for own, *_ in known]), Counts.total([theirs for _, theirs, _ in known if theirs])
    ours, theirs = from_counts([own]).value, from_counts([other]).value
    positives, negatives = own.sizes
    degrees = np.sum([one.patients[:2] for one in spreads], axis=0).min() - 1
    tested = _tested(ours - theirs, variance_of_difference(own.sizes, spreads), float(degrees))
    sizes = {"sites": len(known), "n": int(positives + negatives), "positives": int(positives)}
    return {**sizes, "auroc": ours, "other": theirs, **tested}


def _difference(site: Site) -> dict[str, Any] | None:
    if site.other is None or math.isnan(site.other.value) or site.auroc is None:
        return None
    variance = site.auroc.variance + site.other.variance - 2 * site.covariance
    variance = max(0.0, variance) if not math.isnan(variance) else variance
    degrees = min(site.counts.sizes) / site.design.largest - 1  # roughly the patients of the rarer class
    tested = _tested(site.auroc.value - site.other.value, variance, degrees)
    return {"auroc": site.auroc.value, "other": site.other.value, **tested, "variance": variance, "degrees": degrees}


def _tested(difference: float, variance: float, degrees: float) -> dict[str, Any]:
    """Test a difference against zero: its interval and two-sided p-value.

    Both use Student's t, since the variance rests on the few patients of the rarer class. If both models rank all
    patients alike, the variance is 0; that is not certainty, so interval and p-value are undefined.
    """
    from scipy.special import stdtr  # slow to import

    known, degrees = variance if variance > 0 else math.nan, max(1.0, degrees)
    p = 2 * float(stdtr(degrees, -abs(difference) / math.sqrt(known))) if variance > 0 else math.nan
    found = normal_interval(difference, known, "DeLong", degrees)
    ends = {"low": max(-1.0, found["low"]), "high": min(1.0, found["high"])} if variance > 0 else {}
    return {"difference": found | ends, "p": p}
