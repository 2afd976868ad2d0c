"""Pooling of the sites' evaluations, without sharing individual scores.

For the pooled AUROC and average precision a site reports two histograms of its scores, one per class, on a fixed grid:
the coordinator adds the histograms of all sites and ranks the bins. Samples in one bin are ties. A hospital that
aggregates scores places each group at one position; the worst-case error is reported with the metrics.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.problems.histogram import Histogram, Ints, scores_of
from edelweiss.problems.metrics import (
    BINNED,
    HEADLINE,
    HISTOGRAMS,
    METRICS,
    PARTIAL,
    TIES,
    accuracy,
    merge_labels,
    metric,
    of_own,
    ranking,
    split,
    ties,
)
from edelweiss.problems.roc import partial_auroc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from edelweiss.problems.base import Metrics


def pool(sites: Sequence[Metrics]) -> dict[str, float]:
    """Pool ``Problem.metrics`` of several sites into one number per metric; sites without samples are ignored.

    AUROC and average precision come from the summed histograms, with ``auroc-ties`` and ``auprc-ties`` (see `unknown`),
    accuracies from the summed class counts. Counts are added; all other metrics are averaged, weighted by the sites'
    sample counts ``n`` (1 if not reported).
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
    pooled |= _over_labels(sites[0], lambda of_label: _pooled_ranking(sites, of_label))
    if "class-counts" in sites[0]:
        right, total = (np.sum([site[n] for site in sites], axis=0) for n in ("class-correct", "class-counts"))
        pooled |= accuracy(right.tolist(), total.tolist())
    return pooled


def all_ties(site: Metrics) -> dict[str, float]:
    """Return the worst-case errors of the rankings of one site's evaluation, see `unknown`."""

    def errors(of_label: str) -> dict[str, float]:
        if site[f"fewest{of_label}"] != 1:
            found = _pooled_ranking([site], of_label)
            return {name: value for name, value in found.items() if name in TIES.values()}
        one_class = site[f"positives{of_label}"] in (0, site[f"n{of_label}"])
        kinds = [kind for kind in TIES if f"{kind}{of_label}" in site]
        return {TIES[kind]: math.nan if one_class else 0.0 for kind in kinds}

    return _over_labels(site, errors) if site.get("n", 1) else {}


def _over_labels(site: Metrics, rank: Callable[[str], dict[str, float]]) -> dict[str, float]:
    """Return what ``rank`` finds for an evaluation: for its histograms, or those of each label with the means."""
    if "positive-scores" in site:
        return rank("")
    labels = [label for kind, label in map(split, site) if kind == "positive-scores"]
    return merge_labels({label: rank(f".{label}") for label in labels}) if labels else {}


def _pooled_ranking(sites: Sequence[Metrics], of_label: str = "") -> dict[str, float]:
    """Rank the bins of the summed histograms; with the worst-case errors due to groups."""
    every = [site_histograms(site, of_label) for site in sites]
    positive, negative = (Histogram.total([pair[kind] for pair, _ in every]) for kind in (0, 1))
    found = _ranked((positive.bins, positive.counts), (negative.bins, negative.counts))
    if f"{PARTIAL}{of_label}" not in sites[0]:
        found.pop(PARTIAL)
    own = [name for name, row in METRICS.items() if row.of and f"{name}{of_label}" in sites[0]]
    labels = np.repeat([1, 0], [len(positive.bins), len(negative.bins)])
    scores, counts = scores_of(np.concatenate([positive.bins, negative.bins])), [positive.counts, negative.counts]
    values = of_own(own, labels, scores, np.concatenate(counts))
    return found | values | {TIES[kind]: most for kind, most in unknown(every, found).items()}


SiteScores = tuple[tuple[Histogram, Histogram], int]
"""A site's histograms of positives and of negatives, and how far samples may be from their positions: 0, `IN_BINS` or
`IN_GROUPS`."""

IN_BINS, IN_GROUPS = 1, 2


def site_histograms(site: Metrics, of_label: str = "") -> SiteScores:
    """Read the histograms of an evaluation; ``of_label`` is empty, or a dot and one of several labels."""
    positive, negative = (Histogram.unpacked(site[f"{name}{of_label}"]) for name in HISTOGRAMS)  # type: ignore[arg-type]
    fewest = site[f"fewest{of_label}"]
    return (positive, negative), 0 if fewest == 1 else IN_BINS if fewest == BINNED else IN_GROUPS


def unknown(sites: Sequence[SiteScores], found: Mapping[str, float]) -> dict[str, float]:
    """Return the worst-case errors of ``found``, due to the unknown order within groups.

    A group's samples lie between the positions of the neighbouring groups (see `client_app.policy.coarsening.merged`),
    those of sums over all sites in their own bins (see `federation.sums`).
    The ranking is best with all positives at the upper end and all negatives at the lower end, and worst the other way
    round; the metrics of these two rankings bound the error.
    """
    if not any(how for _, how in sites) or math.isnan(found["auroc"]):
        return dict.fromkeys(found, 0.0 if not math.isnan(found["auroc"]) else math.nan)
    ends = [tuple(_extent(histogram, how) for histogram in pair) for pair, how in sites]
    counts = [np.concatenate([pair[kind].counts for pair, _ in sites]) for kind in (0, 1)]
    low, high = ([np.concatenate([site[kind][end] for site in ends]) for kind in (0, 1)] for end in (0, 1))
    best = _ranked((high[0], counts[0]), (low[1], counts[1]))
    worst = _ranked((low[0], counts[0]), (high[1], counts[1]))
    groups = np.concatenate([np.full(len(pair[0].bins), how > 0) for pair, how in sites])
    worst["auprc"] = _lowest_precision((low[0], counts[0]), (high[1], counts[1]), groups)
    return {kind: max(best[kind] - found[kind], found[kind] - worst[kind], 0.0) for kind in found}


FAR = 2**34  # beyond any position


def _extent(histogram: Histogram, how: int) -> tuple[Ints, Ints]:
    """Return the range of positions, in half bins, of the samples in each bin."""
    places = 2 * histogram.bins
    if how < IN_GROUPS:
        return places - how, places + how
    return np.concatenate([[-FAR], places[:-1] + 1])[: len(places)], np.append(places[1:] - 1, FAR)[: len(places)]


def _lowest_precision(positive: tuple[Ints, Ints], negative: tuple[Ints, Ints], groups: NDArray[np.bool_]) -> float:
    """Return the lowest average precision, with the positives of ``groups`` at one position ranked one by one.

    Ties would all have the precision of the first. With t samples above them, p of them positive, k consecutive
    positives have the precisions (p + i) / (t + i), i = 1 to k. These sum to k - (t - p) (H(t + k) - H(t)) with the
    harmonic numbers H, in constant time for any k.
    """
    from scipy.special import digamma  # slow to import

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
    above = found - alone - tied + passed - other  # samples above the ones ranked one by one
    missed = (passed - other) * (digamma(above + alone + 1) - digamma(above + 1))
    precision = np.divide(found, found + passed, out=np.zeros_like(found), where=found + passed > 0)
    return float((alone - missed + tied * precision).sum() / found[-1])


def _ranked(positive: tuple[Ints, Ints], negative: tuple[Ints, Ints]) -> dict[str, float]:
    """Rank positions with their counts of each class."""
    places, counts = (np.concatenate([positive[part], negative[part]]) for part in (0, 1))
    labels = np.repeat([1, 0], [len(positive[0]), len(negative[0])])
    return ranking(labels, places, counts) | {PARTIAL: partial_auroc(labels, places, counts)}


def across_sites(sites: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Summarise the metrics of personal models over sites, with equal weights.

    For each headline metric that some site reports in ``Problem.metrics``, including those of labels: its ``mean``, its
    ``std`` (the population standard deviation over sites) and its ``worst-decile``, the mean over the worst tenth of
    the sites, at least one, as for q-FedAvg (Li et al., ICLR 2020). Sites where a metric is undefined are ignored; all
    three are NaN without any.
    """
    summary: dict[str, dict[str, float]] = {}
    names = dict.fromkeys(chain.from_iterable(sites))
    of_labels = [name for name in names if split(name)[1] and metric(name).headline]
    for name in [*filter(names.__contains__, HEADLINE), *of_labels]:
        values = np.sort([float(site[name]) for site in sites if not math.isnan(site.get(name, math.nan))])
        tenth = -(-len(values) // 10)
        worst = values[len(values) - tenth :] if metric(name).better == "down" else values[:tenth]
        mean, std, decile = (values.mean(), values.std(), worst.mean()) if len(values) else (math.nan,) * 3
        summary[name] = {"mean": float(mean), "std": float(std), "worst-decile": float(decile)}
        if split(name)[0] in TIES and (most := max([ties(site, name) for site in sites])):
            kind, label = split(name)
            # The largest error of any site bounds that of all three.
            summary[f"{TIES[kind]}.{label}" if label else TIES[kind]] = dict.fromkeys(summary[name], most)
    return summary
