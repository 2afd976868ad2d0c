"""Intervals: invariance under repeated samples, single sites, perfect rankings, and references."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit
from scipy.stats import t

from edelweiss.evidence import Counts, Site, summary
from edelweiss.evidence.calibration import logistic
from edelweiss.evidence.curves import (
    FIXED,
    GRID,
    average_precision,
    average_precision_influence,
    average_precision_variance,
    precision_band,
    precision_recall,
    roc,
    roc_band,
    threshold,
)
from edelweiss.evidence.delong import exact, paired
from edelweiss.evidence.design import Design, effect, largest_effect
from edelweiss.evidence.intervals import (
    LEVEL,
    EffectiveSize,
    auroc_interval,
    average_precision_interval,
    effective_size,
    mover_interval,
    t_quantile,
    wilson,
)
from edelweiss.evidence.reported import Group
from edelweiss.evidence.text import interval_with_ties
from tests.evidence.cases import Scored, of_patients

ENDS = ("low", "high", "low-sites", "high-sites", "value")


def site(
    scores: np.ndarray, labels: np.ndarray, patients: np.ndarray | None, other: np.ndarray, *, grouped: bool = False
) -> Site:
    """Return the statistics of a site with a subgroup, whose model is compared with another."""
    own, theirs, covariance = paired(scores, other, labels, patients)
    first = np.arange(len(labels)) % 3 < 2 if patients is None else patients % 3 < 2
    patient_of = None if patients is None else np.unique(patients[first], return_inverse=True)[1]
    right, truth = scores[first] >= 0, labels[first]
    group = Group(
        "age",
        "old",
        len(truth),
        int(truth.sum()),
        (int(truth[right].sum()), int((1 - truth[~right]).sum())),
        exact(scores[first], truth, patient_of),
        Design.of_group(scores[first], truth, patient_of, 0.0),
    )
    found = Site(
        Counts.of(scores, labels),
        own,
        Design.of(scores, labels, patients),
        groups=[group],
        other=theirs,
        covariance=covariance,
    )
    return (
        replace(
            found,
            auroc=None,
            other=None,
            grouped=True,
            design=Design.uniform(1.0 if patients is None else largest_effect(patients)),
        )
        if grouped
        else found
    )


def some_site(seed: int, n: int, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw scores, labels, and another model's scores."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.3).astype(float)
    labels[:4] = 0, 1, 0, 1
    if kind == "one class":
        labels[:] = 1
    scores = np.round(rng.normal(size=n) + labels * {"perfect": 50, "noise": 0}.get(kind, 1.2), 2)
    return scores, labels, np.round(scores + rng.normal(size=n), 2)


def intervals(found: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every end of an interval in evidence.json, with its path."""
    if isinstance(found, dict):
        if {"at", "low", "high"} == found.keys():
            yield from (
                (f"{path}.{end}[{place}]", value) for end in ("low", "high") for place, value in enumerate(found[end])
            )
            return
        for key, item in found.items():
            if key in ENDS:
                yield f"{path}.{key}", math.nan if item is None else item
            else:
                yield from intervals(item, f"{path}.{key}")
    elif isinstance(found, list):
        for place, item in enumerate(found):
            if isinstance(item, dict):
                yield from intervals(item, f"{path}[{place}]")


SITES = {
    "one": [(0, 80, "")],
    "four": [(1, 60, ""), (2, 25, ""), (3, 90, "noise"), (4, 40, "one class")],
    "perfect": [(5, 30, "perfect"), (6, 40, "perfect")],
    "few": [(7, 9, ""), (8, 12, "noise")],
    "one class": [(9, 20, "one class")],
}


@pytest.mark.parametrize("grouped", [False, True], ids=["samples", "groups"])
@pytest.mark.parametrize("name", SITES)
def test_repeating_every_sample_changes_no_interval(name: str, grouped: bool) -> None:
    def found(times: int) -> dict[str, float]:
        sites = {}
        for seed, n, kind in SITES[name]:
            rows = np.repeat(np.arange(n), times)
            scores, labels, other = (own[rows] for own in some_site(seed, n, kind))
            patients = rows if times > 1 else None
            sites[f"site-{seed}"] = site(scores, labels, patients, other, grouped=grouped)
        test = next(iter(sites.values()))
        return dict(intervals(summary(sites, common=True, log_odds=True, test=test)))

    alone, several = found(1), found(5)
    assert len(alone) > 400 or name == "one class"
    assert several == pytest.approx(alone, rel=1e-6, abs=2e-6, nan_ok=True)


@pytest.mark.parametrize("kind", ["", "noise", "perfect"])
@pytest.mark.parametrize("times", [1, 3])
def test_one_site_alone_has_one_interval_for_one_number(kind: str, times: int) -> None:
    rows = np.repeat(np.arange(50), times)
    scores, labels, other = (own[rows] for own in some_site(3, 50, kind))
    noisy = scores + np.random.default_rng(0).normal(size=len(rows)) * (kind != "perfect")
    found = summary({"a": site(noisy, labels, rows if times > 1 else None, other)}, common=True, log_odds=True)
    every = found["pooled"]["auroc"], found["sites"]["a"]["auroc"], found["within-sites"]["auroc"]
    ends = [[one[end] for end in ("value", "low", "high")] for one in every]
    assert ends[0] == ends[1] == pytest.approx(ends[2], abs=1e-12)
    assert found["pooled"]["auprc"] == found["sites"]["a"]["auprc"]


@pytest.mark.parametrize("n", [200, 20])
def test_the_interval_of_a_mean_shrinks_with_the_root_of_the_number_of_sites(n: int) -> None:
    scores, labels, other = some_site(1, n, "")
    alone = summary({"0": site(scores, labels, None, other)}, common=True, log_odds=True)["within-sites"]["auroc"]
    many = {str(place): site(scores, labels, None, other) for place in range(9)}
    mean = summary(many, common=True, log_odds=True)["within-sites"]["auroc"]
    assert mean["value"] == pytest.approx(alone["value"])
    assert (alone["high"] - alone["low"]) / (mean["high"] - mean["low"]) == pytest.approx(3, rel=0.15)


def test_a_mean_of_few_perfect_rankings_is_not_certain_and_stays_a_share() -> None:
    sites = {}
    for seed in range(5):
        scores, labels, other = some_site(seed, 20, "perfect")
        sites[str(seed)] = site(scores, labels, None, other)
    one, mean = (
        summary(some, common=True, log_odds=True)["within-sites"]["auroc"] for some in ({"0": sites["0"]}, sites)
    )
    assert one["low"] < mean["low"] < 0.995
    assert mean["high"] == 1


def test_sizes_of_patients_decide_between_delong_and_newcombe() -> None:
    few, many = EffectiveSize(40.0, 1.0, 8.0), EffectiveSize(40.0, 1.0, 40.0)
    assert auroc_interval(0.8, 0.004, few, many)["by"] == "Newcombe"
    found = auroc_interval(0.8, 0.004, many, EffectiveSize(900.0, 1.0, 900.0))
    assert found["by"] == "DeLong"
    assert math.log(found["high"] / (1 - found["high"])) - math.log(4) == pytest.approx(
        t.ppf(0.975, 39) * math.sqrt(0.004) / 0.16
    ), "Student's quantile for the patients of the rarer class"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=40), st.integers(1, 30))
def test_every_interval_and_band_contains_its_value_and_stays_in_range(
    samples: list[tuple[int, bool]], patients: int
) -> None:
    scores, labels = (np.array(column, float) for column in zip(*samples, strict=True))
    patient_of = np.unique(np.arange(len(labels)) % patients, return_inverse=True)[1]
    whole = summary({"a": site(scores, labels, patient_of, -scores)}, common=True, log_odds=True)
    for at, end in intervals(whole["compared"] or {}):
        assert math.isnan(end) or -1 <= end <= 1, at
    found = whole["pooled"]
    for kind in ("auroc", "auprc"):
        one = found[kind]
        if one["low"] is not None:
            assert 0 <= one["low"] <= one["value"] <= one["high"] <= 1
    for curve in ("roc", "precision-recall"):
        if band := found[curve].get("band"):
            assert min(band["low"]) >= 0
            assert max(band["high"]) <= 1
            assert all(low <= high for low, high in zip(band["low"], band["high"], strict=True))
    for point in found["points"]:
        assert 0 <= point["low"] <= point["value"] <= point["high"] <= 1


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.floats(0, 1))
def test_displayed_intervals_allow_for_ties_within_groups(three: list[float], off: float) -> None:
    low, value, high = sorted(three)
    found = {"value": value, "low": low, "high": high}
    assert interval_with_ties(found) == interval_with_ties(found | {"ties": 0.0}) == (low, high)
    for moved in (-off, off):
        shown = interval_with_ties(found | {"ties": off})
        assert shown is not None
        assert shown[0] <= min(1.0, max(0.0, low + moved)) <= min(1.0, max(0.0, high + moved)) <= shown[1]
        assert 0 <= shown[0] <= shown[1] <= 1
    assert interval_with_ties({"value": value, "low": None, "high": None, "ties": off}) is None


@pytest.mark.parametrize("scores", [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]], ids=["all alike", "perfect", "inverted"])
def test_no_ranking_is_certain(scores: list[float]) -> None:
    """Where all positives have one score and all negatives one, DeLong's variance is 0, also of 0.5."""
    found = exact(np.repeat(scores, 20), np.repeat([0.0, 1.0], 20))
    assert found.variance == 0
    interval = auroc_interval(
        found.value, found.variance, EffectiveSize(20.0, 1.0, 20.0), EffectiveSize(20.0, 1.0, 20.0)
    )
    assert interval["high"] - interval["low"] > 0.1


def test_the_bands_of_a_perfect_ranking_are_monotonic() -> None:
    positives, negatives = np.repeat([0.0, 1.0], [90, 12]), np.repeat([1.0, 0.0], [90, 12])
    low, high = precision_band(positives, negatives, (12.0, 90.0), 102.0)
    assert (np.diff(low) <= 1e-12).all()
    assert low[GRID <= 0.5].min() > 0.6
    assert (high == 1).all()
    low, high = roc_band(positives, negatives, (12.0, 90.0))
    assert (np.diff(low) >= -1e-12).all()
    assert low[0] > 0.1


def test_bands_contain_their_curves() -> None:
    scores, labels, _ = some_site(4, 300, "")
    counts = Counts.of(scores, labels)
    pair, sizes = (counts.positives, counts.negatives), (float(labels.sum()), float(300 - labels.sum()))
    for curve, (low, high), (x, y) in (
        (roc(*pair), roc_band(*pair, sizes), ("fpr", "tpr")),
        (precision_recall(*pair), precision_band(*pair, sizes, 300.0), ("recall", "precision")),
    ):
        there = np.interp(GRID, curve[x], curve[y])
        assert (low <= there + 0.02).all()
        assert (there <= high + 0.02).all()


def test_the_influence_on_average_precision_is_its_derivative() -> None:
    rng = np.random.default_rng(2)
    positives, negatives = rng.integers(0, 4, 12).astype(float), rng.integers(0, 6, 12).astype(float)
    value = float(average_precision(positives, negatives))
    for kind, moved in enumerate(average_precision_influence(positives, negatives)):
        for place in range(12):
            more = [positives.copy(), negatives.copy()]
            more[kind][place] += 1e-6
            wanted = (float(average_precision(more[0], more[1])) - value) / 1e-6
            assert moved[place] == pytest.approx(wanted, abs=1e-4)


def test_the_variance_of_average_precision_is_that_of_patients_and_of_sites() -> None:
    sites = [Counts.of(*some_site(seed, 60, "")[:2]) for seed in range(4)]
    several = [Counts(own.bins, 5 * own.positives, 5 * own.negatives) for own in sites]
    alone = average_precision_variance(sites, [1.0] * 4)
    assert average_precision_variance(several, [5.0] * 4) == pytest.approx(alone)
    uniform = average_precision_variance([sites[0]] * 4, [1.0] * 4)
    assert uniform[1] == pytest.approx(0, abs=1e-12), "identical sites have no variance between them"
    assert uniform[0] == pytest.approx(average_precision_variance(sites[:1], [1.0])[0] / 4)


def bootstrap_variances(own: Scored, patient_of: np.ndarray, number: Any, times: int = 300) -> tuple[float, float]:
    """Return the bootstrap variances of a number, over patients and over samples."""
    rng, found = np.random.default_rng(0), []
    for units in (patient_of, np.arange(len(patient_of))):
        rows = [np.flatnonzero(units == unit) for unit in np.unique(units)]
        values = []
        for _ in range(times):
            chosen = np.concatenate([rows[place] for place in rng.integers(0, len(rows), len(rows))])
            values.append(number(own[0][chosen], own[1][chosen]))
        found.append(float(np.var(values)))
    return found[0], found[1]


def _slope(scores: np.ndarray, labels: np.ndarray) -> float:
    return logistic(scores, labels, 1 - labels).slope


def _precision(scores: np.ndarray, labels: np.ndarray) -> float:
    counts = Counts.of(scores, labels)
    return float(average_precision(counts.positives, counts.negatives))


@pytest.mark.parametrize("seed", range(2))
def test_design_effects_are_those_of_a_bootstrap_of_patients(seed: int) -> None:
    [(own, patient_of)] = of_patients(seed, sites=1, patients=80)
    design = Design.of(*own, patient_of)
    at = threshold(*own, FIXED[1])
    numbers = {
        "auprc": _precision,
        "slope": _slope,
        "sensitivity": lambda scores, labels: float((scores[labels == 1] >= at).mean()),
        "specificity": lambda scores, labels: float((scores[labels == 0] < at).mean()),
    }
    for name, number in numbers.items():
        patients, samples = bootstrap_variances(own, patient_of, number)
        assert getattr(design, name) == pytest.approx(patients / samples, rel=0.45), name
        assert 1.2 < getattr(design, name) <= 1.3 * design.largest


@pytest.mark.parametrize("repeated", [0, 1])
def test_repeated_samples_of_one_class_affect_the_share_of_that_class_alone(repeated: int) -> None:
    labels = np.arange(200) % 2
    scores = np.random.default_rng(0).normal(size=200) + labels
    rows = np.repeat(np.arange(200), np.where(labels == repeated, 5, 1))
    own = scores[rows], labels[rows].astype(float), rows
    whole, (_, *group, _) = Design.of(*own), Design.of_group(*own, at=0.5)
    for of_positives, of_negatives in ((whole.sensitivity, whole.specificity), group):
        effects = of_negatives, of_positives
        assert effects[repeated] == pytest.approx(5, rel=0.1)
        assert effects[1 - repeated] == pytest.approx(1, rel=0.1)


def test_an_effect_that_cannot_be_estimated_is_the_upper_bound() -> None:
    patients = np.repeat(np.arange(5), [1, 2, 3, 4, 5])
    labels = (patients > 2).astype(float)
    assert largest_effect(patients) == pytest.approx(55 / 15)
    assert effect(np.zeros(15), patients) == largest_effect(patients)
    assert Design.of(np.arange(15.0), np.ones(15), patients) == Design.uniform(largest_effect(patients))
    perfect = Design.of(labels, labels, patients)
    assert (perfect.auroc, perfect.auprc, perfect.slope) == (largest_effect(patients),) * 3
    assert Design.of(np.arange(15.0), labels, None) == Design()


def test_the_interval_of_average_precision_is_that_of_whole_patients() -> None:
    """On a common test set with a dozen samples per patient it matches a bootstrap of patients."""
    rng = np.random.default_rng(3)
    patient_of = np.repeat(np.arange(60), 12)
    labels = (rng.random(60) < 0.3).astype(float)[patient_of]
    scores = rng.normal(size=60)[patient_of] + 0.4 * rng.normal(size=len(patient_of)) + labels
    found = summary({}, common=True, log_odds=True, test=site(scores, labels, patient_of, -scores))["common-test-set"]
    spread = math.sqrt(bootstrap_variances((scores, labels), patient_of, _precision)[0])
    assert (found["auprc"]["high"] - found["auprc"]["low"]) / (2 * 1.96 * spread) == pytest.approx(1, abs=0.3)


def test_mover_keeps_a_single_interval_and_adds_normal_ones_in_quadrature() -> None:
    assert mover_interval(0.7, [(0.5, 0.8)]) == pytest.approx((0.5, 0.8))
    assert mover_interval(1.0, [(0.7, 1.3), (0.6, 1.4)]) == pytest.approx((0.5, 1.5))


def test_the_variance_is_inflated_for_few_patients_unless_samples_are_single_or_equal() -> None:
    assert effective_size([40], [1.0], [1.0]) == EffectiveSize(40.0, 1.0, 40.0)
    assert effective_size([40], [4.0], [4.0]) == EffectiveSize(10.0, 1.0, 10.0)
    some = effective_size([40], [2.0], [4.0])
    assert some.factor == pytest.approx((t_quantile(9) / t_quantile(19)) ** 2)
    assert some.independent == pytest.approx(20 / some.factor)
    assert effective_size([], [], []).independent == 0


def test_the_interval_of_average_precision() -> None:
    found = average_precision_interval(0.6, 1e-6, EffectiveSize(400.0, 1.0, 400.0))
    margin = t_quantile(399) * 1e-3
    assert (found["low"], found["high"]) == pytest.approx((0.6 - margin, 0.6 + margin), abs=1e-5)
    wide = average_precision_interval(0.99, 0.01, EffectiveSize(12.0, 1.0, 12.0))
    assert 0 < wide["low"] < 0.99 < wide["high"] < 1
    perfect = average_precision_interval(1.0, 0.0, EffectiveSize(12.0, 1.0, 12.0))
    assert (perfect["low"], perfect["high"]) == wilson(1.0, 12)


def scored(scores: Sequence[float], labels: Sequence[int]) -> Scored:
    return np.array(scores, float), np.array(labels, float)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8, 0.9, 0.95, 1.0])
def test_the_threshold_is_the_lowest_with_the_specificity(share: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores, labels = rng.integers(-6, 6, 40).astype(float), (rng.random(40) < 0.3).astype(float)
        at, negatives = threshold(scores, labels, share), scores[labels == 0]
        assert (negatives < at).mean() >= share - 1e-9
        lower = [below for below in np.unique(negatives) if below < at]
        assert all((negatives < below).mean() < share for below in lower) or share == 0
    assert threshold(*scored([1, 2], [1, 1]), 0.9) == -math.inf


@settings(max_examples=300)
@given(st.floats(1, 1e9))
def test_students_quantile_is_scipys(degrees: float) -> None:
    assert t_quantile(degrees) == pytest.approx(stdtrit(degrees, (1 + LEVEL) / 2), rel=1e-8)
