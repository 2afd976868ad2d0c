"""AUROC and average precision from noised histograms: what one patient changes, and how often intervals hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from scipy.stats import t as students

from benchmarks.noised_coverage import DELTA, OTHERS, SCORES, Scores, cell
from edelweiss.evidence import noised
from edelweiss.evidence.noised import FACTOR, Noised, estimates
from edelweiss.federation.privacy_account import Query, noise_for

TRIALS = 300
RARELY = 4 * 0.0126  # four standard deviations of 300 trials
CELLS = [
    ("normal 0.75", 200, 8.0, 0.45),
    ("normal 0.75", 200, 1.0, 1.0),
    ("normal 0.75", 500, 8.0, 0.3),
    ("normal 0.9", 2000, 8.0, 0.18),
    ("normal 0.9", 2000, 1.0, 0.33),
    ("beta", 500, 3.0, 0.42),
    ("at both ends", 500, 3.0, 0.44),
    ("at both ends", 2000, 1.0, 0.33),
    ("a few values", 2000, 8.0, 0.4),
    ("a few values", 2000, 1.0, 0.5),
]  # few bins where scores crowd, or tie; last: the widest that an average precision's interval may be


@pytest.mark.parametrize(("scores", "patients", "epsilon", "most"), CELLS)
def test_intervals_hold_the_truth_as_often_as_they_say_and_are_no_wider_than_that_takes(
    scores: str, patients: int, epsilon: float, most: float
) -> None:
    auroc, precision = cell(scores, patients, epsilon, TRIALS).values()
    covers, width, given_, noise = auroc
    assert covers >= 0.95 - RARELY, covers
    assert 0 < width < 1
    assert given_ > 0.15
    assert noise > 0.6 if epsilon == 1 and patients == 200 else noise < 0.9
    covers, width, given_, _ = precision
    if (patients, epsilon) == (200, 1.0):
        assert given_ < 0.05  # positives hardly ever stand out
    else:
        assert covers >= 0.95 - RARELY, covers
        assert width < most


def test_an_interval_without_the_noise_holds_it_too_rarely() -> None:
    random, noise = np.random.default_rng(0), noise_for({Query(1.0): 1}, 1.0, DELTA)
    found = [noised._auroc([SCORES["normal 0.75"].drawn(500, noise, random)], with_noise=False) for _ in range(TRIALS)]
    assert np.mean([one is not None and one[1] <= 0.75 <= one[2] for one in found]) < 0.85


def test_the_same_histograms_have_the_same_interval() -> None:
    site, other = (Scores.normal(0.8).drawn(500, 1.0, np.random.default_rng(seed)) for seed in (0, 1))
    assert estimates([site]) == estimates([Noised.read(site.record())]) != estimates([other])


COUNTS = st.lists(st.one_of(st.floats(-30, 300), st.floats(-1e12, 1e12)), min_size=6, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=5).map(sorted), COUNTS, COUNTS, st.floats(1e-9, 1e9)
        ),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_a_site_sends_there_is_an_interval_around_the_estimate_or_none(sent: list[Any]) -> None:
    records = [dict(zip(("edges", "positives", "negatives", "noise"), one, strict=True)) for one in sent]
    assert not any(map(Noised.wrong, records))
    found = estimates([Noised.read(record) for record in records])
    for name in {"auroc", "auprc"} & set(found):
        low, value, high = (found[f"{name}{end}"] for end in ("-low", "", "-high"))
        assert 0 <= low <= high <= 1
        assert name == "auroc" or low <= value <= high
        assert 0 <= found[f"{name}-noise"] <= 1


@pytest.mark.parametrize("auroc", [0.75, 0.9])
def test_few_bins_say_nearly_the_average_precision_of_the_scores(auroc: float) -> None:
    """Even mixing within seven bins would be 0.02 and 0.05 below."""
    apart = norm.ppf(auroc) * np.sqrt(2)
    scores = np.linspace(-9, 12, 100_001)
    every = 0.9 * norm.cdf(scores) + 0.1 * norm.cdf(scores - apart)
    edges = np.interp(1 - (1 - np.linspace(0, 1, 8)[1:-1]) ** 2, every, scores)
    p, n = (1000 * np.diff([0, *share * norm.cdf(edges - by), share]) for share, by in ((0.1, apart), (0.9, 0)))
    assert noised._precision(p, n) == pytest.approx(Scores.normal(auroc).truth()["auprc"], abs=0.01)


@pytest.mark.slow
def test_sites_of_other_scales_add_up() -> None:
    random, noise = np.random.default_rng(1), noise_for({Query(1.0): 1}, 3.0, DELTA)
    shape, hits = SCORES["at both ends"], {"auroc": 0, "auprc": 0}
    truth = shape.truth()
    for _ in range(TRIALS // 2):
        found = estimates([shape.drawn(patients, noise, random) for patients in (150, 300, 800)])
        for name, true in truth.items():
            hits[name] += found[f"{name}-low"] <= true <= found[f"{name}-high"]
    assert min(hits.values()) >= TRIALS // 2 * (0.95 - 4 * 0.0178), hits


def test_so_do_sums_by_bins_that_most_patients_leave_empty() -> None:
    random, noise = np.random.default_rng(1), math.sqrt(3) * noise_for({Query(1.0): 1}, 3.0, DELTA)
    shape, hits = OTHERS["normal 0.95"], 0
    true = shape.truth()["auprc"]
    for _ in range(TRIALS // 2):
        one = noised._average_precision([shape.drawn(2100, noise, random, noised.FIXED)], with_noise=True)
        hits += one is not None and one[1] <= true <= one[2]
    assert hits >= TRIALS // 2 * (0.95 - 4 * 0.0178), hits


@pytest.mark.parametrize("edges", [None, noised.FIXED])
def test_counts_lie_on_a_grid_with_a_patient_or_without(edges: Any) -> None:
    """Else the last bits would tell of one of both that it cannot be."""
    for patients in (200, 201):
        random = np.random.default_rng(patients)
        scores, positive, weights = random.normal(size=patients), random.random(patients) < 0.1, np.ones(patients)
        weights[:3] = 1 / 3
        found = Noised.of(scores, positive.astype(float), weights, patients, 0.7, random.standard_normal, edges)
        for counts in (found.positives, found.negatives):
            assert (np.modf(counts * 2.0**20)[0] == 0).all()
            assert len(np.unique(np.modf(counts)[0])) > len(counts) / 2, "there is noise"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(allow_nan=True), st.integers(0, 1), st.integers(0, 5)), min_size=2, max_size=40))
def test_one_patient_moves_the_counts_by_at_most_one(rows: list[tuple[float, int, int]]) -> None:
    """Whatever the scores are: in the coarse histogram, and, between the same edges, in the two fine ones."""
    scores, positive, whose = (np.array(column, float) for column in zip(*rows, strict=True))
    weights = 1 / np.array([(whose == one).sum() for one in whose])
    seen: list[np.ndarray[Any, Any]] = []
    edges_of = noised._edges

    def recorded(counts: np.ndarray[Any, Any], *rest: Any) -> np.ndarray[Any, Any]:
        seen.append(counts)
        return edges

    def nothing(count: int) -> np.ndarray[Any, Any]:
        return np.zeros(count)

    edges = np.linspace(-1, 1, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noised, "_edges", recorded)
        patch.setattr(noised, "FEWEST", 6)
        patch.setattr(noised, "MOST", 6)
        whole = Noised.of(scores, positive, weights, 6, 1.0, nothing)
        for one in set(whose):
            less = Noised.of(scores, positive, weights * (whose != one), 6, 1.0, nothing)
            apart = np.concatenate([whole.positives - less.positives, whole.negatives - less.negatives])
            assert np.linalg.norm(apart) <= 1 + 1e-9
            assert np.linalg.norm(seen[0] - seen[-1]) <= 1 + 1e-9
    assert edges_of is noised._edges


def test_how_many_bins_there_are_tells_nothing_of_whose_label_is_known() -> None:
    random = np.random.default_rng(0)
    sites = [
        Noised.of(np.zeros(900), np.zeros(900), known, 900, 1.0, random.standard_normal) for known in np.eye(2, 900)
    ]
    sites.append(Noised.of(np.zeros(900), np.zeros(900), np.ones(900), 900, 1.0, random.standard_normal))
    assert len({len(site.edges) for site in sites}) == 1


def test_both_histograms_together_cost_what_one_would() -> None:
    """Rényi divergences of Gaussian noise add up as 1 / σ²."""
    site = Scores.normal(0.8).drawn(500, 2.0, np.random.default_rng(0))
    assert site.noise == 2.0 * FACTOR
    assert 1 / site.noise**2 + 1 / (noised.COARSE * site.noise) ** 2 == pytest.approx(1 / 2.0**2)


def test_what_noise_hides_is_left_out_and_damaged_records_are_named() -> None:
    nobody = Noised.of(np.zeros(30), np.zeros(30), np.ones(30), 30, 20.0, np.random.default_rng(3).standard_normal)
    assert "auprc" not in estimates([nobody])
    record = Scores.normal(0.8).drawn(500, 1.0, np.random.default_rng(0)).record()
    assert not Noised.wrong(record)
    for wrong in (
        {"noise": 0.0},
        {"positives": [1.0] * 3},
        {"edges": record["edges"][::-1]},
        {"negatives": [float("nan")] * len(record["negatives"])},
    ):
        assert Noised.wrong(record | wrong), wrong


def test_an_interval_of_a_range_reaches_less_far_the_wider_it_is() -> None:
    """Imbens & Manski: at 0 it is the usual one, and of a wide range one end alone can be missed."""
    assert noised._reach(0.0) == pytest.approx(norm.ppf(0.975), abs=1e-6)
    assert noised._reach(20.0) == pytest.approx(norm.ppf(0.95), abs=1e-6)
    for apart in (0.3, 1.0, 3.0):
        by = noised._reach(apart)
        assert norm.cdf(by + apart) - norm.cdf(-by) == pytest.approx(0.95, abs=1e-9)


def test_students_quantile() -> None:
    for freedom in (3.0, 4.0, 10.0, 50.0, 1e6):
        assert noised._t(np.array([freedom]))[0] == pytest.approx(students.ppf(0.975, freedom), rel=2e-3)
