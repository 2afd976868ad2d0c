"""Calibration, decision curves and points on curves, against scikit-learn and sums over samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, roc_curve

from edelweiss.evidence import Counts, calibration
from edelweiss.evidence.calibration import (
    GROUPS,
    assessment,
    deciles,
    logistic,
    platt,
    platt_leave_one_site_out,
    probability,
)
from edelweiss.evidence.curves import average_precision, net_benefit, operating_points, roc, threshold
from edelweiss.problems.histogram import bins_of
from tests.evidence.cases import as_sites, drawn, pool

CASES = [drawn(seed, prior=0.3, n=400) for seed in range(4)] + [drawn(9, sites=2, n=100, decimals=1, prior=0.4)]


def by_scikit_learn(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    found = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(scores[:, None], labels)
    return float(found.intercept_[0]), float(found.coef_[0, 0])


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_logistic_fit_to_counts_is_the_fit_to_samples(case: int) -> None:
    scores, labels = pool(CASES[case])
    every = Counts.of(scores, labels)
    fit = logistic(every.centres(), every.positives, every.negatives)
    assert (fit.intercept, fit.slope) == pytest.approx(by_scikit_learn(scores, labels), abs=1e-4)
    alone = logistic(scores, labels, 1 - labels)
    assert (alone.intercept, alone.slope) == pytest.approx(by_scikit_learn(scores, labels), abs=1e-4)


@pytest.mark.parametrize("apart", [1.0, 8.0, 40.0])
@pytest.mark.parametrize("slope", [None, 1.0])
def test_a_fit_to_many_scores_is_the_fit_without_merged_neighbours(
    apart: float, slope: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    labels = (random.random(6000) < 0.2).astype(float)
    scores = random.normal(size=6000) + apart * labels
    scores[np.flatnonzero(labels)[:3]] = -1.0  # however far apart they are: there is an optimum
    design = random.uniform(1, 3, 6000)
    quick = logistic(scores, labels, 1 - labels, slope, design)
    monkeypatch.setattr(calibration, "PLATT_BINS", len(scores))
    plain = logistic(scores, labels, 1 - labels, slope, design)
    assert (quick.intercept, quick.slope) == pytest.approx((plain.intercept, plain.slope), rel=1e-9)
    assert quick.covariance == pytest.approx(plain.covariance, rel=1e-8)


def test_many_separating_or_constant_scores_are_fitted_as_few() -> None:
    labels = (np.arange(6000) >= 4000).astype(float)
    assert math.isnan(logistic(np.arange(6000.0), labels, 1 - labels).slope)
    one = logistic(np.full(6000, 0.3), labels, 1 - labels)
    assert one.intercept + 0.3 * one.slope == pytest.approx(math.log(2000 / 4000))


def test_leave_one_site_out_maps_are_fits_to_the_other_sites() -> None:
    sites = [Counts.of(*one) for one in drawn(3, sites=4, n=500)]
    for place, fit in enumerate(platt_leave_one_site_out(sites) or []):
        alone = platt(Counts.total(sites[:place] + sites[place + 1 :]))
        assert (fit.intercept, fit.slope) == pytest.approx((alone.intercept, alone.slope), abs=1e-9)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_calibration_and_brier_score_are_those_of_the_samples(case: int) -> None:
    scores, labels = pool(CASES[case])
    every = Counts.of(scores, labels)
    found = assessment(0.5 * every.centres() - 1, every.positives, every.negatives)
    p = probability(0.5 * scores - 1)
    assert found["brier"] == pytest.approx(brier_score_loss(labels, p), abs=1e-6)
    assert found["slope"]["value"] == pytest.approx(by_scikit_learn(0.5 * scores - 1, labels)[1], abs=1e-4)
    # in the large: the intercept at which the mean prediction is the share of positives
    assert probability(0.5 * scores - 1 + found["intercept"]["value"]).mean() == pytest.approx(labels.mean(), abs=1e-3)
    curve = found["curve"]
    assert sum(one["n"] for one in curve) == len(labels)
    assert sum(one["n"] * one["observed"] for one in curve) == pytest.approx(labels.sum())
    assert found["ece"] == pytest.approx(sum(o["n"] * abs(o["predicted"] - o["observed"]) for o in curve) / len(labels))


@pytest.mark.slow
def test_the_intervals_of_slope_and_intercept_cover_the_truth_as_often_as_they_say() -> None:
    rng, covered = np.random.default_rng(1), {"slope": 0, "intercept": 0}
    for _ in range(400):
        scores = rng.normal(size=150)
        labels = (rng.random(150) < probability(scores)).astype(float)
        found = assessment(scores, labels, 1 - labels)
        for kind, truth in (("slope", 1), ("intercept", 0)):
            covered[kind] += found[kind]["low"] <= truth <= found[kind]["high"]
    assert all(0.92 <= count / 400 <= 0.98 for count in covered.values()), covered


def test_separating_scores_have_a_map_and_no_slope() -> None:
    scores, labels = np.arange(-10.0, 10), (np.arange(-10, 10) >= 0).astype(float)
    assert math.isnan(logistic(scores, labels, 1 - labels).slope)
    fit = platt(Counts.of(scores, labels))
    assert 0 < fit.slope < 100
    assert 11 / 12 < probability(fit.log_odds(scores[-1:]))[0] < 1


@pytest.mark.parametrize("largest", [600.0, 1e6, 3e38])
def test_the_intercept_converges_for_certain_predictions(largest: float) -> None:
    scores, positives, negatives = np.array([-largest, 0, largest]), np.ones(3), np.full(3, 3.0)
    intercept = logistic(scores, positives, negatives, 1.0).intercept
    expected = 4 * probability(intercept + np.clip(scores, -700, 700)).sum()
    assert expected == pytest.approx(positives.sum())


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("shared", [0, 1, 2])
def test_the_slope_is_undefined_under_separation(sign: int, shared: int) -> None:
    """Also under quasi-complete separation, where the classes share one score."""
    scores = sign * np.concatenate([np.arange(0.0, 10), np.arange(10.0 - shared, 20)])
    labels = np.repeat([0.0, 1.0], [10, 10 + shared])
    assert math.isnan(logistic(scores, labels, 1 - labels).slope) == (shared < 2)


def test_constant_scores_are_mapped_to_the_prevalence() -> None:
    one = Counts(bins_of(np.array([2.5])), np.array([30.0]), np.array([70.0]))
    fit = platt(one)
    assert probability(fit.log_odds(one.centres()))[0] == pytest.approx(0.3, abs=0.01)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_deciles_are_symmetric(sizes: list[int]) -> None:
    every = np.array(sizes, float)
    twice = 2 * np.cumsum(every) - every
    inside = twice * GROUPS % (2 * every.sum()) != 0  # on an edge: the upper decile, from either end
    assert (deciles(every)[inside] == GROUPS - 1 - deciles(every[::-1])[::-1][inside]).all()


def test_a_map_is_assessed_on_sites_it_was_not_fitted_on() -> None:
    # Noise: fitted and assessed on the same patients, the slope is 1 even for worthless scores.
    rng = np.random.default_rng(5)
    noise = as_sites([(rng.normal(size=40), (rng.random(40) < 0.5).astype(float)) for _ in range(6)])
    sites = [site.counts for site in noise]
    same = platt(Counts.total(sites))
    fits = platt_leave_one_site_out(sites)
    assert fits is not None

    def slope(maps: list) -> float:  # type: ignore[type-arg]
        odds = np.concatenate([fit.log_odds(site.centres()) for fit, site in zip(maps, sites, strict=True)])
        return float(
            assessment(
                odds, *(np.concatenate([getattr(site, kind) for site in sites]) for kind in ("positives", "negatives"))
            )["slope"]["value"]
        )

    assert slope([same] * 6) == pytest.approx(1, abs=0.1)
    assert slope(fits) < 0.5
    left_out = platt(Counts.total([site for place, site in enumerate(sites) if place != 2]))
    assert fits[2].slope == pytest.approx(left_out.slope)
    assert fits[2].slope != pytest.approx(same.slope)
    assert platt_leave_one_site_out(sites[:1]) is None


@pytest.mark.parametrize("case", range(len(CASES)))
def test_average_precision_is_that_of_the_samples(case: int) -> None:
    scores, labels = pool(CASES[case])
    every = Counts.of(scores, labels)
    found = float(average_precision(every.positives, every.negatives))
    assert found == pytest.approx(average_precision_score(labels, scores), abs=1e-9)


def test_a_decision_curve_counts_the_treated() -> None:
    scores, labels = pool(CASES[4])
    every, p = Counts.of(scores, labels), probability(scores)
    curve = net_benefit(probability(every.centres()), every.positives, every.negatives)
    for t, model, treat_all in zip(curve["threshold"], curve["model"], curve["all"], strict=True):
        treated = p >= t
        wanted = (treated & (labels == 1)).mean() - (treated & (labels == 0)).mean() * t / (1 - t)
        assert model == pytest.approx(wanted, abs=1e-9)
        assert treat_all == pytest.approx(labels.mean() - (1 - labels.mean()) * t / (1 - t))


def test_operating_points_are_the_best_at_the_fixed_rate() -> None:
    scores, labels = pool(CASES[4])
    every = Counts.of(scores, labels)
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    for point in operating_points(every.positives, every.negatives, every.centres(), every.sizes):
        if point["fixed"] == "specificity":
            assert point["value"] == pytest.approx(tpr[1 - fpr >= point["at"] - 1e-12].max())
        else:
            assert point["value"] == pytest.approx((1 - fpr)[tpr >= point["at"] - 1e-12].max())
        assert point["low"] <= point["value"] <= point["high"]
        high = scores >= (np.inf if point["threshold"] is None else point["threshold"])
        reached = (~high[labels == 0]).mean() if point["fixed"] == "specificity" else high[labels == 1].mean()
        assert reached == pytest.approx(point["reached"])


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_threshold_of_samples_is_that_of_their_operating_point(case: int) -> None:
    scores, labels = pool(CASES[case])
    own = Counts.of(scores, labels)
    scores = scores.astype(np.float32).astype(float)
    for point in operating_points(own.positives, own.negatives, own.centres(), own.sizes)[:3]:
        at = threshold(scores, labels, point["at"])
        assert ((scores >= at) == (scores >= point["threshold"])).all()
        assert at <= point["threshold"], "both are the lowest that there is, among their numbers"


def test_the_roc_curve_is_that_of_the_samples() -> None:
    scores, labels = pool(CASES[4])
    every = Counts.of(scores, labels)
    found, (fpr, tpr, _) = roc(every.positives, every.negatives), roc_curve(labels, scores, drop_intermediate=False)
    assert (found["fpr"], found["tpr"]) == (pytest.approx(fpr), pytest.approx(tpr))
