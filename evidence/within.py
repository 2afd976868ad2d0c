"""Means within sites: of their AUROCs, and of what they told of groups of patients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from evidence import delong
from evidence.intervals import Estimate, estimate, normal, spread, wilson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evidence.summary import Site
    from evidence.sums import Floats
    from evidence.told import Group


def own_auroc(site: Site) -> delong.Auroc:
    """Return what a site told of its AUROC, else that of its counts."""
    return site.auroc or delong.from_counts([site.counts], [site.design])


def within(sites: Sequence[Site]) -> dict[str, Any]:
    """Return the mean of the sites' own AUROCs; its variance is that of a mean of independent numbers."""
    own = [(own_auroc(site), site.counts.positives.sum(), site.counts.negatives.sum()) for site in sites]
    own = [one for one in own if not math.isnan(one[0].value)]
    return {"sites": len(own), "auroc": _mean(own, np.ones(len(own)))}


def _mean(own: Sequence[tuple[delong.Auroc, float, float]], weights: Floats) -> Estimate:
    """Return the weighted mean of AUROCs, each with its positives and negatives."""
    if not len(own):
        return normal(math.nan, math.nan, "")
    shares = weights / weights.sum()
    variances = [spread(auroc.value, auroc.variance, positives, negatives) for auroc, positives, negatives in own]
    found = normal(float(shares @ [auroc.value for auroc, *_ in own]), float(shares**2 @ variances), "DeLong, Newcombe")
    return found | {end: min(1.0, max(0.0, found[end])) for end in ("low", "high")}


def subgroups(sites: Sequence[Site]) -> dict[str, dict[str, Any]]:
    """Return what is known of each group of patients, by column and group."""
    told: dict[tuple[str, str], list[tuple[Group, bool]]] = {}
    for site in sites:
        has_threshold = bool(site.counts.negatives.any())
        for group in site.groups:
            told.setdefault((group.column, group.name), []).append((group, has_threshold))
    found: dict[str, dict[str, Any]] = {}
    for (column, name), both in told.items():
        groups = [group for group, _ in both]
        ranked = [group for group in groups if not math.isnan(group.auroc.value)]
        own = [(group.auroc, float(group.positives), float(group.n - group.positives)) for group in ranked]
        judged = [group for group, has_threshold in both if has_threshold]
        positives, negatives = sum(one.positives for one in judged), sum(one.n - one.positives for one in judged)
        found.setdefault(column, {})[name] = {
            "n": int(sum(group.n for group in groups)),
            "positives": int(sum(group.positives for group in groups)),
            "sites": len(groups),
            "auroc": _mean(own, np.array([positives * negatives for _, positives, negatives in own])),
            "sensitivity": _share(sum(one.hits[0] for one in judged), positives),
            "specificity": _share(sum(one.hits[1] for one in judged), negatives),
        }
    return found


def _share(hits: int, n: int) -> Estimate:
    """Return a share with its interval."""
    return estimate(hits / n if n else math.nan, *wilson(hits, n), "Wilson")
