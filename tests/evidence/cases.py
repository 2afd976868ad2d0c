"""Scores and labels of several sites, of many kinds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evidence import Counts, Site, Sketch, common_cuts

Scored = tuple[np.ndarray, np.ndarray]


def drawn(seed: int, sites: int = 5, n: int = 800, prior: float = 0.1, decimals: int = 9) -> list[Scored]:
    """Draw sites whose scores differ in place, spread and skew; with few ``decimals`` many are equal."""
    rng = np.random.default_rng([seed, sites])
    found = []
    for _ in range(sites):
        labels = (rng.random(n) < prior * rng.uniform(0.5, 1.5)).astype(float)
        labels[:2] = 0, 1
        scores = rng.normal(rng.normal(), rng.uniform(0.3, 3), n) + rng.uniform(0, 3) * labels
        if rng.random() < 0.5:
            scores = np.exp(scores / 2)
        found.append((np.round(scores, decimals), labels))
    return found


def together(sites: Sequence[Scored]) -> Scored:
    """Return all samples."""
    return np.concatenate([scores for scores, _ in sites]), np.concatenate([labels for _, labels in sites])


def told(sites: Sequence[Scored], bins: int = 256) -> list[Site]:
    """Return what a coordinator gets to know of the sites."""
    cuts = common_cuts([Sketch.of(*site) for site in sites], bins)
    return [Site(Counts.of(*site, cuts), cuts) for site in sites]
