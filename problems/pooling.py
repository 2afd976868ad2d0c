"""How the evaluations of several sites become one, without moving a single score.

For the pooled AUROC and average precision a site adds two histograms of its logits, one per class, on a fixed grid: the
coordinator adds the histograms of all sites and ranks the bins. Samples of one bin count as ties.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from problems.metrics import (
    BINS,
    HEADLINE,
    HISTOGRAMS,
    PARTIAL,
    accuracy,
    by_label,
    metric,
    of_labels,
    ranking,
    split,
)
from problems.roc import partial_auroc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from problems.base import Metrics


def pool(sites: Sequence[Metrics]) -> dict[str, float]:
    """Pool the evaluations of several sites into one.

    AUROC and average precision come from the summed histograms (resolution: 1/32 of a logit), accuracies from the
    summed counts per class; counts add up; every other number is averaged with the sites' sample counts ``n`` as
    weights (1 where a problem reports none).

    Parameters
    ----------
    sites : sequence of Metrics
        What ``Problem.metrics`` returned at each site; one without samples (empty, or ``n`` 0) has no part.

    Returns
    -------
    dict[str, float]
        One number per metric; empty when no site has samples.
    """
    sites = [site for site in sites if site and site.get("n", 1)]
    if not sites:
        return {}
    weights = np.array([float(site.get("n", 1)) for site in sites])  # type: ignore[arg-type]
    pooled: dict[str, float] = {}
    for name in sites[0]:
        how = metric(name).pooled
        if how == "only":
            continue
        values = np.array([site[name] for site in sites], dtype=np.float64)
        pooled[name] = float(values.sum() if how == "sum" else np.average(values, weights=weights))
    several = {name: _ranked_together(sites, f".{name}") for name in by_label(sites[0]) if name}
    if "positive-scores" in sites[0]:
        pooled |= _ranked_together(sites)
    elif several:
        pooled |= of_labels(several)
    if "class-counts" in sites[0]:
        right, total = (np.sum([site[n] for site in sites], axis=0) for n in ("class-correct", "class-counts"))
        pooled |= accuracy(right.tolist(), total.tolist())
    return pooled


def _ranked_together(sites: Sequence[Metrics], of_label: str = "") -> dict[str, float]:
    """Rank the bins of the sites' histograms, added up."""
    positive, negative = (np.sum([site[f"{name}{of_label}"] for site in sites], axis=0) for name in HISTOGRAMS)
    grid, labels = np.arange(BINS), np.repeat([1, 0], BINS)
    counted = labels, np.concatenate([grid, grid]), np.concatenate([positive, negative])
    return ranking(*counted) | ({PARTIAL: partial_auroc(*counted)} if PARTIAL in sites[0] else {})


def across(sites: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Sum up how sites do that each have a model of their own: every site counts the same.

    Parameters
    ----------
    sites : sequence of mapping
        What ``Problem.metrics`` returned at each site.

    Returns
    -------
    dict[str, dict[str, float]]
        For each headline metric, a label's too, that some site reports its ``mean``, its ``std`` (the standard
        deviation over these sites, divided by their number) and its ``worst-decile``: the mean over the worst tenth of
        the sites, at least one, as reported for q-FedAvg (Li et al., ICLR 2020). Sites where a metric is not defined
        have no part; all three are NaN where it is at none.
    """
    summary: dict[str, dict[str, float]] = {}
    of_labels = dict.fromkeys(name for site in sites for name in site if split(name)[1] and metric(name).headline)
    for name in (*HEADLINE, *of_labels):
        if not any(name in site for site in sites):
            continue
        values = np.sort([float(site[name]) for site in sites if not math.isnan(site.get(name, math.nan))])
        tenth = -(-len(values) // 10)
        worst = values[len(values) - tenth :] if metric(name).better == "down" else values[:tenth]
        mean, std, decile = (values.mean(), values.std(), worst.mean()) if len(values) else (math.nan,) * 3
        summary[name] = {"mean": float(mean), "std": float(std), "worst-decile": float(decile)}
    return summary
