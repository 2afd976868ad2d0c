"""Ranking metrics at a site, and how the sites' aggregates are pooled."""

from __future__ import annotations

import math
import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn

from edelweiss.problems import PROBLEMS, ProblemError
from edelweiss.problems.bce import Bce
from edelweiss.problems.histogram import Histogram
from edelweiss.problems.metrics import HEADLINE, METRICS, TIES, accuracy, ranked, ranking
from edelweiss.problems.metrics_record import ROUNDING, contradictions
from edelweiss.problems.pooling import pool
from tests.problems.example import WITH_DATA, batch, make, name_of, point, samples

Site = tuple[np.ndarray, np.ndarray]


def drawn(seed: int, positives: int, negatives: int, gap: float = 1.0, scale: float = 1.5) -> Site:
    """Return labels and logits of a site."""
    random = np.random.default_rng(seed)
    labels = np.repeat([1, 0], [positives, negatives])
    return labels, (random.normal(0, scale, positives + negatives) + gap * labels).astype(np.float32)


def report(site: Site, loss: float = 0.0) -> dict[str, Any]:
    """Return what a site reports."""
    labels, scores = site
    return {"loss": loss, **ranked(labels, scores)}


def pairwise_auroc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Count how often a positive is above a negative; a tie is half."""
    wins = [float(np.sign(p - n)) / 2 + 0.5 for p in scores[labels == 1] for n in scores[labels == 0]]
    return float(np.mean(wins))


@pytest.mark.parametrize(("positives", "negatives"), [(5, 40), (1, 3), (30, 1)])
def test_ranking_is_scikit_learns_and_counts_pairs(positives: int, negatives: int) -> None:
    labels, scores = drawn(positives, positives, negatives)
    scores = np.round(scores, 1)  # with ties
    result = ranking(labels, scores)
    assert result["auroc"] == pytest.approx(roc_auc_score(labels, scores))
    assert result["auroc"] == pytest.approx(pairwise_auroc(labels, scores))
    assert result["auprc"] == pytest.approx(average_precision_score(labels, scores))
    assert ranking(labels, np.exp(scores)) == pytest.approx(result), "any monotone score"


def test_a_weight_is_a_number_of_equal_samples() -> None:
    labels, scores = drawn(0, 6, 20)
    weights = np.random.default_rng(1).integers(0, 4, len(labels))
    repeated = ranking(np.repeat(labels, weights), np.repeat(scores, weights))
    assert ranking(labels, scores, weights) == pytest.approx(repeated)


@pytest.mark.parametrize(
    ("labels", "weights"), [([1, 1], None), ([0, 0], None), ([], None), ([1, 0], [1, 0]), ([1, 0], [0, 0])]
)
def test_without_both_classes_nothing_is_defined(labels: list[int], weights: list[int] | None) -> None:
    result = ranking(np.array(labels), np.zeros(len(labels)), None if weights is None else np.array(weights))
    assert math.isnan(result["auroc"])
    assert math.isnan(result["auprc"])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_of_a_diverged_model_rank_nothing(bad: float) -> None:
    assert math.isnan(ranking(np.array([0, 1, 1]), np.array([0.0, bad, 1.0]))["auroc"])


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60)), min_size=1, max_size=6),
    gap=st.floats(-1, 3),
)
def test_pooled_ranking_is_that_of_all_scores_together(seed: int, sizes: list[tuple[int, int]], gap: float) -> None:
    sites = [drawn(seed + k, p, n, gap) for k, (p, n) in enumerate(sizes)]
    labels, scores = (np.concatenate(parts) for parts in zip(*sites, strict=True))
    pooled = pool([report(site) for site in sites])
    if not len(labels):
        assert pooled == {}
        return
    assert pooled["n"] == len(labels)
    assert pooled["positives"] == labels.sum()
    if not 0 < labels.sum() < len(labels):
        assert math.isnan(pooled["auroc"])
        assert math.isnan(pooled["auprc"])
        return
    assert pooled["auroc"] == pytest.approx(pairwise_auroc(labels, scores), abs=1e-9)
    assert (pooled["auroc-ties"], pooled["auprc-ties"]) == (0, 0)


def test_pooled_ranking_is_not_the_mean_of_the_sites_own() -> None:
    """Two sites that each rank perfectly, on different levels: half of the pairs across them are in the wrong order."""
    low = np.array([1, 1, 0, 0]), np.array([-3.0, -3.1, -4.0, -4.1])
    high = np.array([1, 1, 0, 0]), np.array([4.0, 4.1, 3.0, 3.1])
    assert report(low)["auroc"] == report(high)["auroc"] == 1
    assert pool([report(low), report(high)])["auroc"] == pytest.approx(0.75)


def test_losses_are_weighted_by_samples_and_counts_add_up() -> None:
    sites = [report(drawn(1, 2, 8), loss=1.0), report(drawn(2, 10, 20), loss=5.0)]
    pooled = pool(sites)
    assert pooled["loss"] == pytest.approx((10 * 1 + 30 * 5) / 40)
    assert pooled["n"] == 40
    assert pooled["positives"] == 12
    assert all(isinstance(value, float) for value in pooled.values())


def test_problems_without_samples_are_averaged_plainly() -> None:
    pooled = pool([{"distance-x": 1.0, "distance-y": 0.0}, {"distance-x": 4.0, "distance-y": 1.0}])
    assert pooled == {"distance-x": 2.5, "distance-y": 0.5}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("nothing", [{}, report(drawn(0, 0, 0), loss=math.nan)], ids=["no-answer", "no-samples"])
def test_a_site_without_samples_has_no_part(nothing: dict[str, Any], place: int) -> None:
    sites = [report(drawn(1, 2, 8), loss=1.0), report(drawn(2, 10, 20), loss=5.0)]
    expected = pool(sites)
    sites.insert(place, nothing)
    assert pool(sites) == expected
    assert pool([nothing]) == {}
    assert pool([]) == {}


def test_a_site_with_one_class_still_counts() -> None:
    both, positives = drawn(1, 5, 30), drawn(2, 20, 0, gap=-3.0)
    pooled = pool([report(both), report(positives)])
    labels, scores = (np.concatenate(parts) for parts in zip(both, positives, strict=True))
    assert math.isnan(report(positives)["auroc"])
    assert pooled["auroc"] == pytest.approx(ranking(labels, scores)["auroc"])
    assert abs(pooled["auroc"] - report(both)["auroc"]) > 0.1


# ---------------------------------------------------------------------- the table of metrics


def test_a_metric_without_a_row_is_refused_with_one_line() -> None:
    known = report(drawn(1, 2, 8))
    with pytest.raises(ProblemError) as refusal:
        pool([known | {"brier": 0.2}, known | {"brier": 0.3}])
    assert str(refusal.value) == "the metric 'brier' has no row in problems/metrics.py: add one to METRICS"


SMALL: dict[str, dict[str, Any]] = {"maml": {"ways": 2, "queries": 2}}
ELSEWHERE = [{"name": name} | SMALL.get(name, {}) for name in PROBLEMS if name not in {v["name"] for v in WITH_DATA}]


@pytest.mark.parametrize("variant", [*WITH_DATA, *ELSEWHERE], ids=name_of)
def test_every_metric_of_every_problem_has_a_row_and_can_be_pooled(variant: dict[str, Any]) -> None:
    problem = make(**variant)
    x, y = point(problem, 0)
    held_out = samples(*batch(2, 12, 15)) if problem.needs_data else None
    reported = problem.metrics(x, y, held_out)
    assert reported.keys() <= METRICS.keys()
    pooled = pool([reported, reported])
    assert pooled.keys() - set(TIES.values()) == {name for name in reported if METRICS[name].pooled != "only"}
    counts = {name for name in pooled if METRICS[name].pooled == "sum"}
    assert all(pooled[name] == 2 * float(str(reported[name])) for name in counts)
    assert pooled.keys() & set(HEADLINE), "something for the tables and curves"
    assert any(METRICS[name].diverges for name in reported), "something that shows divergence"


def test_the_table_is_complete() -> None:
    """A number for the tables says which way is better; only what has a curve has a logarithmic axis."""
    for name, row in METRICS.items():
        assert row.label, name
        assert row.pooled in ("mean", "sum", "most", "scores", "classes", "only")
        assert row.better in ("up", "down") or not (row.headline or row.diverges or row.log)
        assert row.headline or not row.log
    assert [name for name in METRICS if METRICS[name].headline] == list(HEADLINE)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_more_right_answers_than_samples_of_a_class_cannot_be(classes: list[tuple[int, int]]) -> None:
    """In any class; as many as there are can."""
    right, total = ([own[part] for own in classes] for part in (0, 1))
    told = {"n": sum(total), "class-correct": right, "class-counts": total, "loss": 0.0}
    wrong = contradictions(told)
    assert bool(wrong) == any(mine > all_ for mine, all_ in classes)
    if wrong:
        assert re.fullmatch(r"class-correct has \d+ of \d+", wrong[0])
    assert contradictions(told | {"n": sum(total) + 1})[:1] == [
        f"n = {sum(total) + 1}, and class-counts add up to {sum(total)}"
    ]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5), st.floats(0, 1))
def test_accuracies_are_those_of_the_counts(classes: list[tuple[int, int]], other: float) -> None:
    """Which were told beside them; no other number is taken, and of no samples there is none."""
    right, total = [min(own) for own in classes], [max(own) for own in classes]
    told = {"n": sum(total), "class-correct": right, "class-counts": total, **accuracy(right, total)}
    assert not contradictions(told)
    for name in ("accuracy", "worst-class"):
        assert bool(contradictions({**told, name: other})) == (sum(total) > 0 and abs(told[name] - other) > ROUNDING)


OPTIMISED = dict.fromkeys(PROBLEMS, "loss") | {
    "auc": "auroc",
    "auc-margin": "auroc",
    "auprc": "auprc",
    "partial-auc": "partial-auroc",
    "fair": "worst-class",
    "robust": "robust-accuracy",
    "saddle": "distance-x",
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_reports_what_it_optimises(name: str) -> None:
    """Under a name that says so, which way is better, and first of what documents say of it; the loss goes unsaid."""
    classes = 5 if name == "maml" else 3 if PROBLEMS[name].multiclass else 2
    problem = make(name, classes=classes) if PROBLEMS[name].needs_data else make(name)
    found = problem.example()
    assert OPTIMISED[name] in found
    assert METRICS[OPTIMISED[name]].better
    assert METRICS[OPTIMISED[name]].headline, "a round's line shows it"
    assert set(problem.reports) <= set(found)
    assert OPTIMISED[name] in ("loss", problem.reports[0])
    assert "loss" in found or not problem.needs_data


# ---------------------------------------------------------------------- what a network problem reports


@pytest.mark.parametrize("variant", [v for v in WITH_DATA if "classes" not in v], ids=name_of)
def test_a_problem_of_two_classes_reports_what_pooling_needs(variant: dict[str, Any]) -> None:
    problem = make(**variant, model="mlp")
    x, y = point(problem, 1)
    data = samples(*batch(2, 30, 50))
    logits, labels = problem.logits(x, data).numpy(), data.targets().numpy()
    metrics = problem.metrics(x, y, data)
    assert metrics["n"] == 80
    assert metrics["positives"] == 30
    assert metrics["auroc"] == pytest.approx(roc_auc_score(labels, logits))
    assert metrics["auprc"] == pytest.approx(average_precision_score(labels, logits))
    assert metrics["positive-scores"] == Histogram.of(logits[labels == 1]).packed()
    assert metrics["negative-scores"] == Histogram.of(logits[labels == 0]).packed()
    assert pool([metrics])["auroc"] == pytest.approx(float(str(metrics["auroc"])))


def test_evaluation_in_several_batches_is_that_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make(**WITH_DATA[0], model="mlp")
    x, y = point(problem, 1)
    data = samples(*batch(2, 30, 50))
    whole = problem.metrics(x, y, data)
    monkeypatch.setattr("edelweiss.problems.network.EVALUATION_BATCH", 7)
    parts = problem.metrics(x, y, data)
    assert parts["loss"] == pytest.approx(whole["loss"])
    assert parts["positive-scores"] == whole["positive-scores"]


@pytest.mark.parametrize("variant", WITH_DATA, ids=name_of)
def test_evaluation_of_no_samples_and_of_one_class(variant: dict[str, Any]) -> None:
    problem = make(**variant)
    x, y = point(problem, 1)
    nothing = problem.metrics(x, y, samples(*batch(0, 0, 0)))
    assert nothing["n"] == 0
    one = problem.metrics(x, y, samples(*batch(0, 0, 4)))
    assert math.isfinite(float(str(one["loss"])))
    assert "classes" in variant or math.isnan(float(str(one["auroc"])))
    assert pool([nothing, one])["loss"] == pytest.approx(float(str(one["loss"])))


def with_batch_norm() -> Bce:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        problem: Bce = make("bce", model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)))
        return problem


def test_batch_norm_statistics_change_in_training_and_not_in_evaluation() -> None:
    problem = with_batch_norm()
    x = problem.initial()["x"]
    data = batch(0, 10, 20)
    start = problem.buffers()
    assert start.tolist() == [0, 0, 0, 1, 1, 1]
    before = problem.metrics(x, None, samples(*data))
    assert torch.equal(problem.buffers(), start)
    problem.gradient(x, None, data)
    trained = problem.buffers()
    assert not torch.equal(trained, start)
    after = problem.metrics(x, None, samples(*data))
    assert torch.equal(problem.buffers(), trained)
    assert after["loss"] != before["loss"], "evaluation uses the statistics"
    problem.load_buffers(start)
    assert problem.metrics(x, None, samples(*data)) == before
    problem.gradient(x, None, data)
    assert torch.equal(problem.buffers(), trained), "training goes on from what was loaded"


def test_an_evaluation_between_two_gradients_changes_neither() -> None:
    quiet, evaluated = with_batch_norm(), with_batch_norm()
    x, data = quiet.initial()["x"], batch(0, 10, 20)
    for _ in range(3):
        evaluated.metrics(x, None, samples(*batch(9, 3, 3)))
        assert torch.equal(evaluated.gradient(x, None, data)[0], quiet.gradient(x, None, data)[0])
    assert torch.equal(evaluated.buffers(), quiet.buffers())


def test_problems_without_batch_norm_have_no_statistics() -> None:
    assert make(**WITH_DATA[0]).buffers().numel() == 0
