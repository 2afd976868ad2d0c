"""Scores and labels of several sites, for the tests of evidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edelweiss.evidence import Counts, Site

Scored = tuple[np.ndarray, np.ndarray]


def drawn(seed: int, sites: int = 5, n: int = 800, prior: float = 0.1, decimals: int = 9) -> list[Scored]:
    """Draw sites whose scores differ in location, spread and skew; few ``decimals`` give many ties."""
    rng = np.random.default_rng([seed, sites])
    found = []
    for _ in range(sites):
        labels = (rng.random(n) < prior * rng.uniform(0.5, 1.5)).astype(float)
        labels[:2] = 0, 1
        scores = rng.normal(rng.normal(), rng.uniform(0.3, 3), n) + rng.uniform(0, 3) * labels
        if rng.random() < 0.5:
            scores = np.exp(scores / 2)
        found.append((np.round(scores, decimals).astype(np.float32).astype(np.float64), labels))
    return found


def pool(sites: Sequence[Scored]) -> Scored:
    """Return the samples of all sites."""
    return np.concatenate([scores for scores, _ in sites]), np.concatenate([labels for _, labels in sites])


def as_sites(sites: Sequence[Scored]) -> list[Site]:
    """Return the statistics of sites that report counts alone."""
    return [Site(Counts.of(*site)) for site in sites]


def of_patients(seed: int, sites: int = 4, patients: int = 60, size: int = 4) -> list[tuple[Scored, np.ndarray]]:
    """Draw sites whose patients have several similar samples; return the patient of each sample as well."""
    rng, found = np.random.default_rng([seed, sites, patients]), []
    for _ in range(sites):
        owner = np.repeat(np.arange(patients), rng.integers(1, 2 * size, patients))
        ill = rng.random(patients) < 0.25 * rng.uniform(0.5, 1.5)
        labels = np.where(rng.random(len(owner)) < 0.9, ill[owner], rng.random(len(owner)) < 0.25).astype(float)
        scores = rng.normal(0, 0.5) + labels + rng.normal(0, 0.7, patients)[owner] + rng.normal(0, 0.7, len(owner))
        scores = scores.astype(np.float32).astype(np.float64)
        found.append(((scores, labels), owner))
    return found
