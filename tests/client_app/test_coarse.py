"""What an evaluation tells of single patients: much, as a problem reports it; next to nothing, as a hospital does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edelweiss.client_app.policy.coarsening import coarse, merged, rounded
from edelweiss.datasets import DataConfig, DataSummary, load_site
from edelweiss.models import Architecture
from edelweiss.problems import PROBLEMS, Setting
from edelweiss.problems.histogram import LAST, Histogram, scores_of
from edelweiss.problems.metrics import ranking
from edelweiss.problems.pooling import IN_GROUPS, _extent, pool
from tests.client_app.policies import Hospital, reading, train
from tests.server_app.sites import FEATURES, table, write_table

KEY = "0badc0de" * 8
FEWEST = 5


def answered(hospital: Hospital, model: torch.Tensor, **keys: Any) -> dict[str, Any]:
    """Return what a hospital tells of a model, in a run of its own."""
    with hospital.run(**keys) as grid:
        assert train(grid, model=model) == ""
        return dict(grid.answers[-1].content.config_records["metrics"])


def held_out(folder: Path, key: str = KEY) -> tuple[Any, np.ndarray]:
    """Return a hospital's data, and the rows that it holds out."""
    data = load_site(DataConfig(dataset="site", data_dir=str(folder), key=key), 0, 1)
    return data, data.held_out.inputs[data.held_out.rows].numpy()


def alone(told: bytes) -> list[float]:
    """Return the scores of patients who have a bin to themselves, or share it with few."""
    found = Histogram.unpacked(told)
    return scores_of(found.bins[found.counts < FEWEST]).tolist()


def values_of(told: bytes) -> np.ndarray:
    """Return the scores that bins stand for."""
    return scores_of(Histogram.unpacked(told).bins)


def test_the_histogram_reads_patients_out_without_the_rules_and_none_with_them(tmp_path: Path) -> None:
    """A model that is one feature: its histogram is the list of the held-out patients' values of that feature."""
    features, labels = table(400, seed=0)
    model = reading(2, 1, 0)
    found = {}
    for name, fewest in {"without": 1, "with": FEWEST}.items():
        hospital = Hospital(tmp_path / name, features, labels, seed="a", fewest_of_each_class=fewest)
        told = answered(hospital, model)
        found[name] = alone(told["positive-scores"]) + alone(told["negative-scores"])
        sizes = [Histogram.unpacked(told[f"{kind}-scores"]).counts.sum() for kind in ("positive", "negative")]
        assert sizes == [told["positives"], told["n"] - told["positives"]]
        assert told["fewest"] == fewest
        near = np.abs(
            features[:, 2]
            - np.concatenate([values_of(told[f"{kind}-scores"]) for kind in ("positive", "negative")])[:, None]
        ).min(1)
        assert (near < 1e-6).all() == (fewest == 1), "where a group stands is no patient's own score"
        assert fewest == 1 or told["auroc"] == pool([told])["auroc"], "nor is more told by what follows from it"
    assert len(found["without"]) > 40
    assert all(np.abs(features[:, 2] - value).min() < 1e-6 for value in found["without"])
    assert found["with"] == []


@pytest.fixture
def telling(tmp_path: Path) -> Any:
    """Return what is told of one patient, whose feature 0 is varied and by whom the attacker knows the model to make.

    The others' feature 0 is far away, so that a model can tell the patient apart.
    """
    features, labels = table(300, seed=1)
    features[:, 0] = -100.0
    folder = write_table(tmp_path / "it", features, labels)
    setting = Setting(data_summary=DataSummary(shape=(FEATURES,), prior=0.3), architecture=Architecture(model="linear"))

    def told(problem: str, value: float, model: torch.Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
        data, _ = held_out(folder)
        data.held_out.inputs[data.held_out.rows[7], 0] = value
        judge = PROBLEMS[problem](setting)
        y = torch.zeros(judge.dual)  # type: ignore[attr-defined]
        x = model[: len(judge.initial()["x"])]
        exact = judge.metrics(x, y, data.held_out)
        return exact, coarse(exact, len(data.held_out), FEWEST)

    return told


@pytest.mark.parametrize("problem", ["auc", "bce", "auprc", "partial-auc"])
def test_no_number_reads_a_single_patient(telling: Any, problem: str) -> None:
    """The others score -8 or less; this one what its feature says, between -8 and 8, or far beyond.

    Means are none of these numbers: a loss has few digits, and they are about this patient if the model is made so.
    """
    for times in (1.0, 1000.0):
        answers = [telling(problem, value, reading(0, times, 0)) for value in np.linspace(-7, 7, 11)]
        kinds = [
            len({repr({name: told for name, told in answer[which].items() if name != "loss"}) for answer in answers})
            for which in (0, 1)
        ]
        assert kinds[0] == 11 or times > 1
        # Whatever the value, the answer is the same. One over pairs of samples tells whether it is low or high.
        assert kinds[1] <= (1 if problem in ("auc", "bce") else 2)


def test_a_loss_gives_a_patients_value_without_rounding_and_hardly_a_digit_of_it_with(telling: Any) -> None:
    values, model = np.linspace(-7, 7, 57), reading(0, 1.0, 0)
    exact, told = (
        [answer[which]["loss"] for answer in (telling("bce", value, model) for value in values)] for which in (0, 1)
    )
    assert (np.diff(exact) > 0).all() or (np.diff(exact) < 0).all(), "each value has a loss of its own"
    assert len({*told}) <= 2


# ---------------------------------------------------------------------- how well it still measures


counts = st.dictionaries(st.integers(-LAST, LAST) | st.integers(-9, 9), st.sampled_from([1, 2, 3, 7, 40]), max_size=40)


def of_counts(counts: dict[int, int]) -> Histogram:
    bins = np.array(sorted(counts), np.int64)
    return Histogram(bins, np.array([counts[int(bin_)] for bin_ in bins], np.int64))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(counts=counts, fewest=st.integers(1, 8))
def test_merged_bins_hold_enough_and_stay_in_order(counts: dict[int, int], fewest: int) -> None:
    before = of_counts(counts)
    if before.counts.sum() < fewest:
        return
    groups = merged(before, fewest)
    assert groups.counts.sum() == before.counts.sum()
    assert groups.at_least(fewest)
    assert (np.diff(groups.bins) > 0).all()
    every = np.union1d(before.bins, groups.bins)
    moved = [[one.counts[one.bins <= at].sum() for at in every] for one in (before, groups)]
    assert np.abs(np.subtract(*moved)).max() < max(1, 3 * fewest)
    assert fewest > 1 or groups.packed() == before.packed()
    # What a reader takes a group to lie between has all of its samples, in half bins.
    low, high = (np.repeat(ends, groups.counts) for ends in _extent(groups, IN_GROUPS))
    samples = 2 * np.repeat(before.bins, before.counts)
    assert ((low <= samples) & (samples <= high)).all()


@given(ends=st.tuples(st.integers(-LAST, LAST) | st.integers(-9, 9), st.integers(-LAST, LAST) | st.integers(-9, 9)))
def test_a_group_stands_above_its_first_bin_and_not_above_its_last(ends: tuple[int, int]) -> None:
    low, high = sorted(ends)
    if low < high:
        [place] = merged(of_counts({low: FEWEST - 1, high: 1}), FEWEST).bins
        assert low < place <= high


def test_where_a_group_stands_says_little_of_its_last_patient() -> None:
    """With the others of the group at 0, any other score made a difference if the place were a mean."""
    rng = np.random.default_rng(0)
    places = {
        int(merged(of_counts({0: FEWEST - 1, int(last): 1}), FEWEST).bins[0]) for last in rng.integers(1, LAST, 5000)
    } | {int(merged(of_counts({0: FEWEST - 1, last: 1}), FEWEST).bins[0]) for last in range(1, 5000)}
    assert len(places) <= math.ceil(math.log2(LAST))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), positives=st.integers(5, 60), negatives=st.integers(5, 60))
def test_the_area_stays_within_its_bound(seed: int, positives: int, negatives: int) -> None:
    rng = np.random.default_rng(seed)
    scores = [rng.normal(size=count) * rng.uniform(0.1, 4) + rng.normal() for count in (positives, negatives)]
    whole = [Histogram.of(values) for values in scores]
    before, after = (
        ranking(
            np.repeat([1, 0], [len(p.bins), len(n.bins)]),
            np.concatenate([p.bins, n.bins]),
            np.concatenate([p.counts, n.counts]),
        )["auroc"]
        for p, n in (whole, [merged(found, FEWEST) for found in whole])
    )
    assert abs(after - before) < 3 * FEWEST * (1 / positives + 1 / negatives)


@settings(max_examples=200, deadline=None)
@given(value=st.floats(-1e9, 1e9), part=st.floats(1e-6, 0.5), share=st.booleans())
def test_what_rounding_changes(value: float, part: float, share: bool) -> None:
    assert abs(rounded(value, part, share=share) - value) <= part * (1 if share else max(abs(value), 1e-12))


def test_what_diverges_is_told(telling: Any) -> None:
    _, told = telling("bce", 0.0, reading(1, math.nan, 0))
    assert math.isnan(told["loss"])


def test_counts_of_right_answers_are_in_groups() -> None:
    told = coarse(
        {"loss": 2.3, "n": 30, "accuracy": 0.1, "worst-class": 0.0, "class-correct": [11, 3], "class-counts": [12, 18]},
        30,
        FEWEST,
    )
    assert told["class-correct"] == [10, 5]
    assert told["class-counts"] == [12, 18]
    assert told["accuracy"] == pytest.approx(15 / 30)
    assert told["worst-class"] == pytest.approx(5 / 18)
    assert (told["n"], told["loss"]) == (30, 2.5)


def test_an_accuracy_without_counts_is_rounded_as_a_share() -> None:
    """As maml's is, whose tasks are no counts of patients."""
    found = coarse({"loss": 0.7, "accuracy": 0.613, "n": 60}, 60, 5)
    assert found["accuracy"] == 0.625
    assert found["n"] == 60
