"""How the evaluations of several sites become one, without moving a single score.

For the pooled AUROC and average precision a site adds two histograms of its scores, one per class, on a fixed grid: the
coordinator adds the histograms of all sites and ranks the bins. Samples of one bin have one score, so they are ties. A
hospital that tells of groups of samples puts each group where one of them may be; by how much that may be off, in the
worst case, is told beside the numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.problems.histogram import Histogram, Ints
from edelweiss.problems.metrics import (
    HEADLINE,
    HISTOGRAMS,
    PARTIAL,
    TIES,
    accuracy,
    by_label,
    metric,
    of_labels,
    ranking,
    split,
    ties,
)
from edelweiss.problems.roc import partial_auroc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from edelweiss.problems.base import Metrics


def pool(sites: Sequence[Metrics]) -> dict[str, float]:
    """Pool the evaluations of several sites into one.

    AUROC and average precision come from the summed histograms, with ``auroc-ties`` and ``auprc-ties`` (see `unknown`),
    accuracies from the summed counts per class; counts add up; every other number is averaged with the sites' sample
    counts ``n`` as weights (1 where a problem reports none).

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
        pooled[name] = float(
            values.sum() if how == "sum" else values.max() if how == "most" else np.average(values, weights=weights)
        )
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
    """Rank the bins of the sites' histograms, added up; with what may be off because of groups."""
    every = [told_scores(site, of_label) for site in sites]
    positive, negative = (Histogram.total([pair[kind] for pair, _ in every]) for kind in (0, 1))
    found = _ranked((positive.bins, positive.counts), (negative.bins, negative.counts))
    if f"{PARTIAL}{of_label}" not in sites[0]:
        found.pop(PARTIAL)
    return found | {TIES[kind]: most for kind, most in unknown(every, found).items()}


Told = tuple[tuple[Histogram, Histogram], bool]
"""A site's histograms of positives and of negatives, and whether it tells of groups."""


def told_scores(site: Metrics, of_label: str = "") -> Told:
    """Read the histograms in an evaluation; of one of several labels, whose name begins with a point."""
    positive, negative = (Histogram.unpacked(site[f"{name}{of_label}"]) for name in HISTOGRAMS)  # type: ignore[arg-type]
    return (positive, negative), site[f"fewest{of_label}"] > 1  # type: ignore[operator]


def unknown(sites: Sequence[Told], found: Mapping[str, float]) -> dict[str, float]:
    """Return by how much what is ``found`` may be off in the worst case, because groups have no order.

    A group's samples are above the place of the group before, and below that of the one behind (see
    `client_app.policy.coarsening.merged`). So the ranking is best with all positives at the upper of these ends and all
    negatives at the lower, and worst the other way round; the values of these two are held against them.
    """
    if not any(grouped for _, grouped in sites) or math.isnan(found["auroc"]):
        return dict.fromkeys(found, 0.0 if not math.isnan(found["auroc"]) else math.nan)
    ends = [tuple(_extent(histogram, grouped) for histogram in pair) for pair, grouped in sites]
    counts = [np.concatenate([pair[kind].counts for pair, _ in sites]) for kind in (0, 1)]
    low, high = ([np.concatenate([site[kind][end] for site in ends]) for kind in (0, 1)] for end in (0, 1))
    best = _ranked((high[0], counts[0]), (low[1], counts[1]))
    worst = _ranked((low[0], counts[0]), (high[1], counts[1]))
    groups = np.concatenate([np.full(len(pair[0].bins), grouped) for pair, grouped in sites])
    worst["auprc"] = _lowest_precision((low[0], counts[0]), (high[1], counts[1]), groups)
    return {kind: max(best[kind] - found[kind], found[kind] - worst[kind], 0.0) for kind in found}


FAR = 2**34  # beyond any place


def _extent(histogram: Histogram, grouped: bool) -> tuple[Ints, Ints]:
    """Return between which places, counted in half bins, the samples of each bin are."""
    places = 2 * histogram.bins
    if not grouped:
        return places, places
    return np.concatenate([[-FAR], places[:-1] + 1])[: len(places)], np.append(places[1:] - 1, FAR)[: len(places)]


def _lowest_precision(positive: tuple[Ints, Ints], negative: tuple[Ints, Ints], groups: NDArray[np.bool_]) -> float:
    """Return the average precision where positives of ``groups`` that have one place stand one after the other.

    Of samples that may stand anywhere those with one score are as well off as the first. With so many samples above
    them, t of which p are positive, k that follow each other have the precisions (p + i) / (t + i), i = 1 to k. They
    add up to k - (t - p) (H(t + k) - H(t)), with the harmonic numbers H: no matter how many a site says there are.
    """
    from scipy.special import digamma  # it takes a while to import

    places = np.unique(np.concatenate([positive[0], negative[0]]))[::-1]  # from the highest down
    alone, tied, other = (
        np.bincount(np.searchsorted(-places, -own), counts, len(places))
        for own, counts in (
            (positive[0][groups], positive[1][groups]),
            (positive[0][~groups], positive[1][~groups]),
            negative,
        )
    )
    found = np.cumsum(alone + tied)
    passed = np.cumsum(other)
    above = found - alone - tied + passed - other  # samples above those that stand alone, and of these the negatives
    missed = (passed - other) * (digamma(above + alone + 1) - digamma(above + 1))
    precision = np.divide(found, found + passed, out=np.zeros_like(found), where=found + passed > 0)
    return float((alone - missed + tied * precision).sum() / found[-1])


def _ranked(positive: tuple[Ints, Ints], negative: tuple[Ints, Ints]) -> dict[str, float]:
    """Rank places, each with so many samples of a class."""
    places, counts = (np.concatenate([positive[part], negative[part]]) for part in (0, 1))
    labels = np.repeat([1, 0], [len(positive[0]), len(negative[0])])
    return ranking(labels, places, counts) | {PARTIAL: partial_auroc(labels, places, counts)}


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
        if most := max(ties(site, name) for site in sites):
            kind, label = split(name)
            # None is further off than the site that is furthest.
            summary[f"{TIES[kind]}.{label}" if label else TIES[kind]] = dict.fromkeys(summary[name], most)
    return summary
