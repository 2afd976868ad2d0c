"""Means within sites: of AUROCs, and of the statistics of subgroups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.evidence import delong
from edelweiss.evidence.intervals import (
    EffectiveSize,
    Estimate,
    auroc_interval,
    effective_size,
    mean_auroc_interval,
    share_interval,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.evidence.reported import Group
    from edelweiss.evidence.summary import Site


def own_auroc(site: Site) -> delong.Auroc:
    """Return the AUROC that a site reported, else that of its counts."""
    return site.auroc or delong.from_counts([site.counts], [site.design.auroc])


def mean_within_sites(sites: Sequence[Site]) -> dict[str, Any]:
    """Return the mean of the sites' AUROCs with its interval."""
    own = [
        ranked
        for site in sites
        if (ranked := _ranked(own_auroc(site), site.counts.sizes, site.design.auroc, site.design.largest))
    ]
    return {"sites": len(own), "auroc": mean_auroc_interval(own)}


def _ranked(
    auroc: delong.Auroc, sizes: tuple[float, float], design: float, largest: float
) -> tuple[Estimate, EffectiveSize, EffectiveSize] | None:
    """Return an AUROC with its interval and effective sizes; None if it is undefined."""
    if math.isnan(auroc.value):
        return None
    positives, negatives = (effective_size([size], [design], [largest]) for size in sizes)
    return auroc_interval(auroc.value, auroc.variance, positives, negatives), positives, negatives


def subgroups(sites: Sequence[Site]) -> dict[str, dict[str, Any]]:
    """Evaluate each subgroup over the sites that reported it, by column and group."""
    reported: dict[tuple[str, str], list[tuple[Group, bool]]] = {}
    for site in sites:
        has_threshold = bool(site.counts.negatives.any())
        for group in site.groups:
            reported.setdefault((group.column, group.name), []).append((group, has_threshold))
    found: dict[str, dict[str, Any]] = {}
    for (column, name), both in reported.items():
        groups = [group for group, _ in both]
        own = [
            (ranked, float(np.prod(group.sizes)))
            for group in groups
            if (ranked := _ranked(group.auroc, group.sizes, group.design[0], group.design[3]))
        ]
        with_threshold = [group for group, has_threshold in both if has_threshold]
        found.setdefault(column, {})[name] = {
            "n": int(sum(group.n for group in groups)),
            "positives": int(sum(group.positives for group in groups)),
            "sites": len(groups),
            "auroc": mean_auroc_interval([ranked for ranked, _ in own], [pairs for _, pairs in own]),
            "sensitivity": _share(with_threshold, 0),
            "specificity": _share(with_threshold, 1),
        }
    return found


def _share(groups: Sequence[Group], kind: int) -> Estimate:
    """Return the share of correctly classified positives (0) or negatives (1)."""
    found = effective_size(
        *zip(*((group.sizes[kind], group.design[kind + 1], group.design[3]) for group in groups), strict=True)
        if groups
        else [(), (), ()]
    )
    total = sum(group.sizes[kind] for group in groups)
    return share_interval(sum(group.hits[kind] for group in groups) / total if total else math.nan, found.independent)
