"""Means within sites: of their AUROCs, and of what they told of groups of patients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.evidence import delong
from edelweiss.evidence.intervals import Estimate, Worth, of_auroc, of_mean_auroc, of_share, worth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.evidence.reported import Group
    from edelweiss.evidence.summary import Site


def own_auroc(site: Site) -> delong.Auroc:
    """Return what a site told of its AUROC, else that of its counts."""
    return site.auroc or delong.from_counts([site.counts], [site.design.auroc])


def within(sites: Sequence[Site]) -> dict[str, Any]:
    """Return the mean of the sites' own AUROCs, with the interval that theirs give."""
    own = [
        ranked
        for site in sites
        if (ranked := _ranked(own_auroc(site), site.counts.sizes, site.design.auroc, site.design.largest))
    ]
    return {"sites": len(own), "auroc": of_mean_auroc(own)}


def _ranked(
    auroc: delong.Auroc, sizes: tuple[float, float], design: float, largest: float
) -> tuple[Estimate, Worth, Worth] | None:
    """Return an AUROC with its interval and what it is of; None where it is not defined."""
    if math.isnan(auroc.value):
        return None
    positives, negatives = (worth([size], [design], [largest]) for size in sizes)
    return of_auroc(auroc.value, auroc.variance, positives, negatives), positives, negatives


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
        own = [
            (ranked, float(np.prod(group.sizes)))
            for group in groups
            if (ranked := _ranked(group.auroc, group.sizes, group.design[0], group.design[3]))
        ]
        judged = [group for group, has_threshold in both if has_threshold]
        found.setdefault(column, {})[name] = {
            "n": int(sum(group.n for group in groups)),
            "positives": int(sum(group.positives for group in groups)),
            "sites": len(groups),
            "auroc": of_mean_auroc([ranked for ranked, _ in own], [pairs for _, pairs in own]),
            "sensitivity": _share(judged, 0),
            "specificity": _share(judged, 1),
        }
    return found


def _share(groups: Sequence[Group], kind: int) -> Estimate:
    """Return how many of a class were told right: of the positives (0) or of the negatives (1)."""
    found = worth(
        *zip(*((group.sizes[kind], group.design[kind + 1], group.design[3]) for group in groups), strict=True)
        if groups
        else [(), (), ()]
    )
    total = sum(group.sizes[kind] for group in groups)
    return of_share(sum(group.hits[kind] for group in groups) / total if total else math.nan, found.independent)
