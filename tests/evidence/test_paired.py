"""The paired test over all sites, from sums, against the test on the pooled scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from edelweiss.evidence import Counts
from edelweiss.evidence.delong import from_counts
from edelweiss.evidence.paired import Spread, spread, variance_of_difference
from tests.evidence.cases import Scored, drawn, pool
from tests.reference.delong import clustered_difference, delong


def rivals(sites: Sequence[Scored], seed: int) -> list[np.ndarray]:
    """Draw another model's scores of the same patients, by site."""
    rng = np.random.default_rng([seed, 99])
    found = [0.5 * scores + rng.normal(0, 1, len(scores)) + labels for scores, labels in sites]
    return [scores.astype(np.float32).astype(np.float64) for scores in found]


def compare(
    sites: Sequence[Scored], others: Sequence[np.ndarray], patients: Sequence[np.ndarray] | None = None
) -> tuple[float, float, list[Spread]]:
    """Run both steps of the comparison; return the difference, its variance, and the sites' sums."""
    labels = [own for _, own in sites]
    models = ([scores for scores, _ in sites], others)
    merged = [Counts.total([Counts.of(*one) for one in zip(model, labels, strict=True)]) for model in models]
    reported = [
        spread(
            (models[0][site], models[1][site]),
            labels[site],
            None if patients is None else patients[site],
            (merged[0], merged[1]),
        )
        for site in range(len(sites))
    ]
    values = [from_counts([counts]).value for counts in merged]
    return values[0] - values[1], variance_of_difference(merged[0].sizes, reported), reported


def in_one_place(sites: Sequence[Scored], others: Sequence[np.ndarray]) -> tuple[float, float]:
    scores, labels = pool(sites)
    values, covariance = delong(labels, scores, np.concatenate(others))
    return values[0] - values[1], covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_it_matches_the_test_on_pooled_scores(seed: int) -> None:
    sites = drawn(seed, decimals=9 if seed % 2 else 1)
    others = rivals(sites, seed)
    assert compare(sites, others)[:2] == pytest.approx(in_one_place(sites, others), abs=1e-9)


def test_a_site_with_one_class_contributes() -> None:
    sites = drawn(3, sites=3, n=60, prior=0.4)
    scores, labels = sites[0]
    sites = [(scores[labels == 1], labels[labels == 1]), *sites[1:]]
    others = rivals(sites, 3)
    difference, variance, reported = compare(sites, others)
    assert (difference, variance) == pytest.approx(in_one_place(sites, others), abs=1e-9)
    assert reported[0].patients == (int(labels.sum()), 0, int(labels.sum()))


def test_clustered_samples_are_summed_by_patient() -> None:
    rng = np.random.default_rng(4)
    sites, others, patients = [], [], []
    for site in range(3):
        patient_of = rng.integers(0, 20, 70)
        ill = (rng.random(20) < 0.4)[patient_of]  # most samples of a patient have one label
        labels = np.where(rng.random(70) < 0.1, ~ill, ill).astype(float)
        sites.append((rng.normal(size=20)[patient_of] + 0.3 * rng.normal(size=70) + labels, labels))
        others.append(rng.normal(size=20)[patient_of] + 0.3 * rng.normal(size=70) + labels)
        patients.append(np.unique(patient_of + 100 * site, return_inverse=True)[1])
    _, variance, _ = compare(sites, others, patients)
    scores, labels = pool(sites)
    patient_of = np.concatenate([own + 1000 * site for site, own in enumerate(patients)])
    wanted = clustered_difference(labels, scores, np.concatenate(others), patient_of)
    assert variance == pytest.approx(wanted, rel=1e-9)
    assert abs(wanted / compare(sites, others)[1] - 1) > 0.1, "otherwise the case tests nothing"


def test_a_model_and_itself_do_not_differ() -> None:
    sites = drawn(1, sites=2, n=60)
    assert compare(sites, [scores for scores, _ in sites])[:2] == (0, 0)


def test_one_patient_of_a_class_gives_no_variance() -> None:
    sites = [(np.arange(5.0), np.array([0.0, 0, 0, 0, 1]))]
    assert math.isnan(compare(sites, [np.arange(5.0)[::-1]])[1])
