"""Metrics at a site, and how the sites' aggregates are pooled without moving a single score.

AUROC and average precision are scikit-learn's. A site reports its own, exactly. For the pooled ones it adds
two histograms of its logits, one per class, on a fixed grid: the coordinator adds the histograms of all sites
and ranks the bins. Samples of one bin count as ties.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import Tensor

    from problems.base import Metrics

BINS = 512
COUNTS = ("n", "positives")
LOWER_IS_BETTER = ("loss", "clean-loss", "distance-x", "distance-y")
LIMIT = 8.0  # logits are clipped to ±8 (a probability of 0.99966); a bin is 1/32 wide


def ranking(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> dict[str, float]:
    """Area under the ROC curve and average precision.

    Parameters
    ----------
    labels : ndarray
        Shape (n,), 1 for positive and 0 for negative.
    scores : ndarray
        Shape (n,), any monotone score.
    weights : ndarray, optional
        Shape (n,), non-negative sample weights.

    Returns
    -------
    dict[str, float]
        ``auroc`` and ``auprc``; both NaN unless both classes are there: neither is defined then.
    """
    present = labels if weights is None else labels[weights > 0]
    if present.size == 0 or present.min() == present.max():
        return {"auroc": math.nan, "auprc": math.nan}
    if not np.isfinite(scores).all():  # a diverged model ranks nothing
        return {"auroc": math.nan, "auprc": math.nan}
    from sklearn.metrics import average_precision_score, roc_auc_score  # heavy: only where it is used

    return {
        "auroc": float(roc_auc_score(labels, scores, sample_weight=weights)),
        "auprc": float(average_precision_score(labels, scores, sample_weight=weights)),
    }


def histogram(scores: np.ndarray) -> list[int]:
    """Count logits on the fixed grid of ``BINS`` bins over ±``LIMIT``."""
    scores = np.nan_to_num(scores, nan=0.0, posinf=LIMIT, neginf=-LIMIT)
    bins = np.clip((scores + LIMIT) * (BINS / (2 * LIMIT)), 0, BINS - 1).astype(np.int64)
    return np.bincount(bins, minlength=BINS).tolist()  # type: ignore[no-any-return]


def correct_by_class(labels: Tensor, logits: Tensor) -> Metrics:
    """Accuracy, that of the worst class, and the counts per class that pooling needs.

    Parameters
    ----------
    labels : Tensor
        Shape (n,), classes 0 to C-1.
    logits : Tensor
        Shape (n, C).
    """
    classes = logits.shape[1]
    right = torch.bincount(labels[logits.argmax(1) == labels], minlength=classes).tolist()
    total = torch.bincount(labels, minlength=classes).tolist()
    return {**accuracy(right, total), "class-correct": right, "class-counts": total}


def accuracy(right: Sequence[int], total: Sequence[int]) -> dict[str, float]:
    """Share of right answers, over all samples and in the worst class; NaN without samples."""
    if not sum(total):
        return {"accuracy": math.nan, "worst-class": math.nan}
    worst = min(r / t for r, t in zip(right, total, strict=True) if t)
    return {"accuracy": sum(right) / sum(total), "worst-class": worst}


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
    pooled: dict[str, float] = {}
    sites = [site for site in sites if site and site.get("n", 1)]
    if not sites:
        return pooled
    weights = np.array([float(site.get("n", 1)) for site in sites])  # type: ignore[arg-type]
    for name, first in sites[0].items():
        if not isinstance(first, list):
            values = np.array([site[name] for site in sites], dtype=np.float64)
            pooled[name] = float(values.sum() if name in COUNTS else np.average(values, weights=weights))
    if "positive-scores" in sites[0]:
        positive = np.sum([site["positive-scores"] for site in sites], axis=0)
        negative = np.sum([site["negative-scores"] for site in sites], axis=0)
        grid = np.arange(BINS)
        pooled |= ranking(np.repeat([1, 0], BINS), np.concatenate([grid, grid]), np.concatenate([positive, negative]))
    if "class-counts" in sites[0]:
        right, total = (np.sum([site[name] for site in sites], axis=0) for name in ("class-correct", "class-counts"))
        pooled |= accuracy(right.tolist(), total.tolist())
    return pooled


def across(sites: Sequence[Mapping[str, Any]], names: Collection[str]) -> dict[str, dict[str, float]]:
    """Sum up how sites do that each have a model of their own: every site counts the same.

    Parameters
    ----------
    sites : sequence of mapping
        What ``Problem.metrics`` returned at each site.
    names : collection of str
        The metrics to sum up; one that no site reports is left out.

    Returns
    -------
    dict[str, dict[str, float]]
        For each metric its ``mean``, its ``std`` (the standard deviation over these sites, divided by their number) and
        its ``worst-decile``: the mean over the worst tenth of the sites, at least one, as reported for q-FedAvg (Li et
        al., ICLR 2020). Sites where a metric is not defined have no part; all three are NaN where it is at none.
    """
    summary: dict[str, dict[str, float]] = {}
    for name in names:
        if not any(name in site for site in sites):
            continue
        values = np.sort([float(site[name]) for site in sites if not math.isnan(site.get(name, math.nan))])
        tenth = -(-len(values) // 10)
        worst = values[len(values) - tenth :] if name in LOWER_IS_BETTER else values[:tenth]
        mean, std, decile = (values.mean(), values.std(), worst.mean()) if len(values) else (math.nan,) * 3
        summary[name] = {"mean": float(mean), "std": float(std), "worst-decile": float(decile)}
    return summary
