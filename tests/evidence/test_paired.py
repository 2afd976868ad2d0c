"""Two models on the same patients of all sites, from sums, against all scores in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from edelweiss.evidence import Counts
from edelweiss.evidence.delong import from_counts
from edelweiss.evidence.paired import Spread, spread, variance_of_difference
from tests.evidence.cases import Scored, drawn, together
from tests.reference.delong import clustered_difference, delong


def rivals(sites: Sequence[Scored], seed: int) -> list[np.ndarray]:
    """Draw another model's scores of the same patients, by site."""
    rng = np.random.default_rng([seed, 99])
    found = [0.5 * scores + rng.normal(0, 1, len(scores)) + labels for scores, labels in sites]
    return [scores.astype(np.float32).astype(np.float64) for scores in found]


def compared(
    sites: Sequence[Scored], others: Sequence[np.ndarray], patients: Sequence[np.ndarray] | None = None
) -> tuple[float, float, list[Spread]]:
    """Do what coordinator and sites do; return the difference, its variance, and what the sites told last."""
    labels = [own for _, own in sites]
    models = ([scores for scores, _ in sites], others)
    merged = [Counts.total([Counts.of(*one) for one in zip(model, labels, strict=True)]) for model in models]
    told = [
        spread(
            (models[0][site], models[1][site]),
            labels[site],
            None if patients is None else patients[site],
            (merged[0], merged[1]),
        )
        for site in range(len(sites))
    ]
    values = [from_counts([counts]).value for counts in merged]
    return values[0] - values[1], variance_of_difference(merged[0].sizes, told), told


def in_one_place(sites: Sequence[Scored], others: Sequence[np.ndarray]) -> tuple[float, float]:
    scores, labels = together(sites)
    values, covariance = delong(labels, scores, np.concatenate(others))
    return values[0] - values[1], covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_from_counts_it_is_that_of_all_scores(seed: int) -> None:
    sites = drawn(seed, decimals=9 if seed % 2 else 1)
    others = rivals(sites, seed)
    assert compared(sites, others)[:2] == pytest.approx(in_one_place(sites, others), abs=1e-9)


def test_a_site_of_one_class_has_a_part() -> None:
    sites = drawn(3, sites=3, n=60, prior=0.4)
    scores, labels = sites[0]
    sites = [(scores[labels == 1], labels[labels == 1]), *sites[1:]]
    others = rivals(sites, 3)
    difference, variance, told = compared(sites, others)
    assert (difference, variance) == pytest.approx(in_one_place(sites, others), abs=1e-9)
    assert told[0].patients == (int(labels.sum()), 0, int(labels.sum()))


def test_samples_of_one_patient_are_summed_up_before_they_are_squared() -> None:
    rng = np.random.default_rng(4)
    sites, others, patients = [], [], []
    for site in range(3):
        whose = rng.integers(0, 20, 70)
        ill = (rng.random(20) < 0.4)[whose]  # most samples of a patient have one label
        labels = np.where(rng.random(70) < 0.1, ~ill, ill).astype(float)
        sites.append((rng.normal(size=20)[whose] + 0.3 * rng.normal(size=70) + labels, labels))
        others.append(rng.normal(size=20)[whose] + 0.3 * rng.normal(size=70) + labels)
        patients.append(np.unique(whose + 100 * site, return_inverse=True)[1])
    _, variance, _ = compared(sites, others, patients)
    scores, labels = together(sites)
    whose = np.concatenate([own + 1000 * site for site, own in enumerate(patients)])
    wanted = clustered_difference(labels, scores, np.concatenate(others), whose)
    assert variance == pytest.approx(wanted, rel=1e-9)
    assert abs(wanted / compared(sites, others)[1] - 1) > 0.1, "else it would not matter"


def test_a_model_and_itself_do_not_differ() -> None:
    sites = drawn(1, sites=2, n=60)
    assert compared(sites, [scores for scores, _ in sites])[:2] == (0, 0)


def test_one_patient_of_a_class_gives_no_variance() -> None:
    sites = [(np.arange(5.0), np.array([0.0, 0, 0, 0, 1]))]
    assert math.isnan(compared(sites, [np.arange(5.0)[::-1]])[1])
