"""AUROC and its variance, from placements and from counts, against sums over all pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from edelweiss.evidence.delong import covariance, exact, from_counts, placements
from edelweiss.evidence.design import Design
from edelweiss.evidence.intervals import EffectiveSize, Z, auroc_interval, newcombe, wilson
from tests.evidence.cases import as_sites, drawn, of_patients, pool
from tests.reference.delong import clustered, delong

SCORED = st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=4, max_size=60)


@settings(deadline=None, max_examples=30)
@given(SCORED)
def test_placements_match_all_pairs_with_ties(samples: list[tuple[int, bool]]) -> None:
    scores, labels = (np.array(column, float) for column in zip(*samples, strict=True))
    found = exact(scores, labels)
    if len(set(labels)) < 2:
        assert math.isnan(found.value)
        return
    assert found.value == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    if 1 < labels.sum() < len(labels) - 1:
        [value], [[variance]] = delong(labels, scores)
        assert (found.value, found.variance) == pytest.approx((value, variance), abs=1e-12)
    else:
        assert math.isnan(found.variance)


@pytest.mark.parametrize("seed", range(5))
def test_counts_give_the_auroc_of_all_scores(seed: int) -> None:
    sites = drawn(seed, decimals=9 if seed % 2 else 1)
    scores, labels = pool(sites)
    [value], [[variance]] = delong(labels, scores)
    found = from_counts([site.counts for site in as_sites(sites)])
    assert found.value == pytest.approx(value, abs=1e-9)
    assert found.variance == pytest.approx(variance, abs=1e-9)


def test_sites_with_one_class_contribute() -> None:
    ill, well = (np.arange(40.0) + 20, np.ones(40)), (np.arange(40.0), np.zeros(40))
    sites = as_sites([ill, well])
    found = from_counts([site.counts for site in sites])
    [value], [[variance]] = delong(*reversed(pool([ill, well])))
    assert (found.value, found.variance) == pytest.approx((value, variance), abs=1e-12)
    assert math.isnan(from_counts([sites[0].counts]).value)


def test_clustered_samples_are_summed_by_patient() -> None:
    rng = np.random.default_rng(3)
    patients = rng.integers(0, 40, 200)
    labels = (rng.random(200) < 0.3).astype(float)
    scores = rng.normal(size=40)[patients] + 0.3 * rng.normal(size=200) + labels
    assert exact(scores, labels, patients).variance == pytest.approx(clustered(labels, scores, patients), rel=1e-9)
    assert Design.of(scores, labels, patients).auroc > 1.5
    assert Design.of(scores, labels, np.arange(200)).auroc == pytest.approx(1)


def bootstrap_variance(sites: list[tuple[tuple[np.ndarray, np.ndarray], np.ndarray]], seed: int) -> float:
    """Return the bootstrap variance of the pooled AUROC, over patients within each site."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(150):
        rows = []
        for (scores, labels), patient_of in sites:
            own = [np.flatnonzero(patient_of == patient) for patient in np.unique(patient_of)]
            chosen = np.concatenate([own[place] for place in rng.integers(0, len(own), len(own))])
            rows.append((scores[chosen], labels[chosen]))
        scores, labels = pool(rows)
        found.append(exact(scores, labels).value)
    return float(np.var(found))


@pytest.mark.slow
def test_a_design_effect_per_site_approximates_a_bootstrap_of_patients() -> None:
    """As docs/evidence.md says: a little too narrow; without design effects far too narrow."""
    with_effect, without = [], []
    for seed in range(3):
        sites = of_patients(seed, patients=40)
        counts = [site.counts for site in as_sites([own for own, _ in sites])]
        design = [Design.of(*own, patient_of).auroc for own, patient_of in sites]
        wanted = bootstrap_variance(sites, seed)
        with_effect.append(math.sqrt(from_counts(counts, design).variance / wanted))
        without.append(math.sqrt(from_counts(counts).variance / wanted))
    assert 0.8 < np.mean(with_effect) < 1.1
    assert np.mean(without) < 0.75


def test_the_covariance_of_two_models_on_the_same_patients() -> None:
    [(one, labels)] = drawn(1, sites=1, n=150, prior=0.3)
    other = one + np.random.default_rng(0).normal(size=150)
    values, wanted = delong(labels, one, other)
    centred = [placements(scores, labels) - value for scores, value in zip((one, other), values, strict=True)]
    assert covariance(*centred, labels, np.arange(150)) == pytest.approx(wanted[0, 1], rel=1e-9)


@pytest.mark.parametrize(("p", "n", "by"), [(12, 60, "DeLong"), (3, 40, "Newcombe")])
def test_intervals_have_their_nominal_coverage(p: int, n: int, by: str) -> None:
    # Two normal distributions, half a standard deviation apart: AUROC = Φ(0.5/√2).
    rng, truth, covered, by_delong = np.random.default_rng(7), 0.5 * (1 + math.erf(0.25)), 0, 0
    for _ in range(1000):
        scores, labels = np.append(rng.normal(0.5, 1, p), rng.normal(0, 1, n)), np.repeat([1.0, 0.0], [p, n])
        found = exact(scores, labels)
        ends = auroc_interval(found.value, found.variance, EffectiveSize(p, 1, p), EffectiveSize(n, 1, n))
        assert ends["by"] == by
        covered += ends["low"] <= truth <= ends["high"]
        by_delong += abs(found.value - truth) <= Z * math.sqrt(found.variance)
    assert 0.935 <= covered / 1000 <= 0.975
    assert by == "DeLong" or by_delong / 1000 < 0.9, "for few patients it would be too narrow"


def test_a_perfect_ranking_of_few_patients_is_uncertain() -> None:
    found = exact(np.arange(20.0), (np.arange(20) > 17).astype(float))
    assert (found.value, found.variance) == (1, 0)
    ends = auroc_interval(found.value, found.variance, EffectiveSize(2, 1, 2), EffectiveSize(18, 1, 18))
    assert (ends["by"], ends["high"]) == ("Newcombe", 1)
    assert 0.4 < ends["low"] < 0.9
    assert newcombe(1.0, [(200, 1800)])[0] > 0.99
    low, high = newcombe(0.7, [(30, 40)])
    assert low < 0.7 < high


def test_wilson_intervals_match_published_ones() -> None:
    # Newcombe, Stat Med 17 (1998), Table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29, by the score method.
    table = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0, 0.1611), (1, 29): (0.0061, 0.1718)}
    for (hits, n), ends in table.items():
        assert wilson(hits / n, n) == pytest.approx(ends, abs=5e-5)
