"""The partial AUC objective against a double loop over pairs, its limits, its corner cases, and a run."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn.metrics import roc_auc_score
from torch import Tensor

from edelweiss.client_app.policy.coarsening import coarse
from edelweiss.config import ConfigError, RunConfig
from edelweiss.problems import partial_auc as module
from edelweiss.problems.partial_auc import PartialAuc
from edelweiss.problems.pooling import pool
from edelweiss.problems.roc import FALSE_POSITIVE_RATE, partial_auroc
from edelweiss.server_app import simulate
from tests.problems.example import FEATURES, batch, make, point, samples
from tests.reference import losses

SCORE = torch.tensor([1.0, 0, 0, 0, 0])  # the x that makes the first feature the logit


def build(
    temperature: float = 0.5, margin: float = 1.0, model: str = "linear", dtype: torch.dtype = torch.float64
) -> PartialAuc:
    problem: PartialAuc = make("partial-auc", temperature=temperature, margin=margin, model=model, dtype=dtype)
    return problem


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-logits)))


def pairs(h: np.ndarray, labels: np.ndarray, margin: float) -> list[list[float]]:
    """Return ℓ of each positive with each negative."""
    return [[max(margin - own + other, 0.0) ** 2 for other in h[labels == 0]] for own in h[labels == 1]]


def double_loop(h: np.ndarray, labels: np.ndarray, margin: float, temperature: float) -> float:
    """Return the mean over positives of λ log of the mean over negatives of exp(ℓ/λ), pair by pair."""
    total, terms = 0.0, pairs(h, labels, margin)
    for row in terms:
        inner = 0.0
        for loss in row:
            inner += math.exp(loss / temperature) / len(row)
        total += temperature * math.log(inner) / len(terms)
    return total


def value(problem: PartialAuc, x: Tensor, inputs: Tensor, labels: Tensor) -> float:
    return float(str(problem.metrics(x, None, samples(inputs, labels))["loss"]))


@pytest.mark.parametrize("temperature", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("margin", [0.1, 1.0, 2.0])
@pytest.mark.parametrize(("positives", "negatives"), [(1, 9), (4, 12), (7, 1)])
def test_value_and_gradient_are_those_of_a_double_loop(
    temperature: float, margin: float, positives: int, negatives: int
) -> None:
    problem = build(temperature, margin)
    x, _ = point(problem, 1)
    inputs, labels = batch(11, positives, negatives)

    def written(v: np.ndarray) -> float:
        h = sigmoid(inputs.numpy() @ v[:FEATURES] + v[FEATURES])
        return double_loop(h, labels.numpy(), margin, temperature)

    gx, gy = problem.gradient(x, None, (inputs, labels))
    assert gy is None
    expected = losses.finite_differences(written, x.numpy())
    np.testing.assert_allclose(gx.numpy(), expected, rtol=1e-6, atol=1e-8)
    assert np.abs(expected).max() > 1e-3 or margin < 1
    assert value(problem, x, inputs, labels) == pytest.approx(written(x.numpy()), rel=1e-9)


def test_of_a_deeper_network_too() -> None:
    problem = build(0.3, model="mlp")
    x, _ = point(problem, 3)
    drawn = batch(7, 4, 12)
    gx, _ = problem.gradient(x, None, drawn)
    for seed in range(4):
        direction = torch.from_numpy(np.random.default_rng(seed).normal(size=len(x)))
        ends = [value(problem, x + step * direction, *drawn) for step in (1e-6, -1e-6)]
        assert float(gx @ direction) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-8)


def test_a_high_temperature_leaves_the_mean_over_all_pairs_a_low_one_the_worst_negative() -> None:
    x, _ = point(build(), 2)
    inputs, labels = batch(5, 4, 12)
    h = sigmoid(inputs.numpy() @ x.numpy()[:FEATURES] + x.numpy()[FEATURES])
    every = pairs(h, labels.numpy(), 1.0)
    mean, worst = float(np.mean(every)), float(np.mean([max(row) for row in every]))
    assert worst > mean + 0.1
    assert value(build(1e6), x, inputs, labels) == pytest.approx(mean, abs=1e-6)
    assert value(build(1e-6), x, inputs, labels) == pytest.approx(worst, abs=1e-5)
    between = [value(build(t), x, inputs, labels) for t in (0.01, 0.1, 1.0, 10.0)]
    assert [worst, *between, mean] == sorted([worst, *between, mean], reverse=True)


@pytest.mark.parametrize("temperature", [1e-6, 0.5, 1e6])
@pytest.mark.parametrize("logits", [[0.0] * 4, [50.0, 50, -50, -50], [-1e4, 1e4, 1e4, 1e4], [200.0, -200, 0, 0]])
@pytest.mark.parametrize("labels", [[1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
def test_it_is_finite_in_float32_whatever_the_scores(
    temperature: float, logits: list[float], labels: list[int]
) -> None:
    problem = build(temperature, dtype=torch.float32)
    inputs, targets = torch.zeros(4, FEATURES), torch.tensor(labels)
    inputs[:, 0] = torch.tensor(logits)
    gx, _ = problem.gradient(SCORE, None, (inputs, targets))
    assert gx.isfinite().all()
    rounding = 1e-6 * max(1.0, temperature)
    assert -rounding <= value(problem, SCORE, inputs, targets) <= 4 + rounding  # ℓ ≤ (m + 1)²


@pytest.mark.parametrize(("positives", "negatives"), [(0, 5), (5, 0), (1, 0)])
def test_a_batch_that_lacks_a_class_moves_nothing(positives: int, negatives: int) -> None:
    problem = build()
    x, _ = point(problem, 0)
    drawn = batch(0, positives, negatives)
    gx, _ = problem.gradient(x, None, drawn)
    assert torch.equal(gx, torch.zeros_like(x))
    assert value(problem, x, *drawn) == 0


def test_the_highest_negative_weighs_most_and_the_more_the_lower_the_temperature() -> None:
    """The features of the negatives are orthogonal, so that the gradient shows the weight of each."""
    inputs, labels = torch.eye(FEATURES, dtype=torch.float64), torch.tensor([1, 0, 0, 0])
    x = torch.tensor([0.0, -0.2, 0.0, 0.2, 0.0], dtype=torch.float64)
    shares = []
    for temperature in (10.0, 0.1):
        by_negative = build(temperature).gradient(x, None, (inputs, labels))[0][1:FEATURES]
        assert by_negative.argmax() == 2
        shares.append(float(by_negative[2] / by_negative.sum()))
    assert 1 / 3 < shares[0] < shares[1] - 0.1


def test_fewer_negatives_in_a_batch_estimate_too_low_a_loss() -> None:
    problem = build(0.1)
    x, _ = point(problem, 4)
    inputs, labels = batch(9, 1, 64)
    own, others = inputs[labels == 1], inputs[labels == 0]
    estimates = []
    for size in (1, 4, 16, 64):
        truth = torch.tensor([1] + [0] * size)
        parts = [value(problem, x, torch.cat([own, part]), truth) for part in torch.split(others, size)]
        estimates.append(float(np.mean(parts)))
    assert estimates == sorted(estimates)
    assert estimates[0] < estimates[-1] - 0.05


def test_blocks_of_positives_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = build(0.3, model="mlp")
    x, _ = point(problem, 1)
    drawn = batch(3, 30, 70)
    whole, gradient = value(problem, x, *drawn), problem.gradient(x, None, drawn)[0]
    shapes: list[int] = []
    soft_worst = problem.soft_worst

    def noting(positives: Tensor, negatives: Tensor) -> Tensor:
        shapes.append(len(positives))
        return soft_worst(positives, negatives)

    monkeypatch.setattr(problem, "soft_worst", noting)
    monkeypatch.setattr(module, "PAIRS", 560)
    assert value(problem, x, *drawn) == pytest.approx(whole, rel=1e-12)
    assert shapes == [8, 8, 8, 6]
    torch.testing.assert_close(problem.gradient(x, None, drawn)[0], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("key", "wrong"), [("margin", 0.0), ("temperature", 0.0), ("temperature", -1.0), ("temperature", 1e7)]
)
def test_options_have_ranges(key: str, wrong: float) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({"algorithm": "fcsg", "problem": "partial-auc", f"partial-auc.{key}": wrong})
    assert caught.value.keys == [f"partial-auc.{key}"]


@pytest.mark.slow
def test_auroc_rises_on_breast_cancer(tmp_path: Any) -> None:
    keys: dict[str, Any] = {"algorithm": "fcsg", "problem": "partial-auc", "partition": "iid", "sites": 4, "rounds": 15}
    keys |= {"thin-share": 0.2, "workers": 1, "device": "cpu", "fcsg.lr": 0.03, "runs-dir": str(tmp_path)}
    config = RunConfig.parse(keys)
    assert config.sampler == "fixed-positives"
    first, *_, last = simulate(keys).metrics
    assert last["auroc"] > first["auroc"] + 0.02
    assert last["auroc"] > 0.97
    assert last["loss"] < first["loss"]


# ---------------------------------------------------------------------- what is reported of it


def share_of_pairs(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the share of pairs with one of the highest 30 % of the negatives that are ranked right; a tie is half."""
    negatives = np.sort(scores[labels == 0])[::-1]
    total, left = 0.0, FALSE_POSITIVE_RATE * len(negatives)
    for negative in negatives:  # the last one in part
        right = np.mean([(1 + np.sign(positive - negative)) / 2 for positive in scores[labels == 1]])
        total, left = total + min(left, 1.0) * right, left - min(left, 1.0)
    return float(total / (FALSE_POSITIVE_RATE * len(negatives)))


several = st.lists(st.tuples(st.integers(0, 1), st.integers(-30, 30)), min_size=2, max_size=40).filter(
    lambda rows: len({label for label, _ in rows}) == 2
)


@settings(deadline=None, max_examples=200)
@given(several)
def test_the_partial_auroc_is_scikit_learns_and_a_share_of_pairs(rows: list[tuple[int, int]]) -> None:
    labels, scores = (np.array(column) for column in zip(*rows, strict=True))
    found = partial_auroc(labels, scores.astype(float))
    rate = FALSE_POSITIVE_RATE
    least, most = rate**2 / 2, rate
    rescaled = (1 + (found * rate - least) / (most - least)) / 2
    assert rescaled == pytest.approx(roc_auc_score(labels, scores, max_fpr=rate))
    assert 0 <= found <= 1
    distinct = scores + np.linspace(0, 0.5, len(scores))  # where the rate falls among ties the curve is a line
    assert partial_auroc(labels, distinct) == pytest.approx(share_of_pairs(labels, distinct))
    assert partial_auroc(labels, np.exp(distinct / 10)) == pytest.approx(partial_auroc(labels, distinct)), "any scale"
    twice = partial_auroc(np.tile(labels, 2), np.tile(scores, 2).astype(float))
    assert partial_auroc(labels, scores.astype(float), np.full(len(labels), 2.0)) == pytest.approx(twice), "a weight"


@pytest.mark.parametrize(("labels", "scores"), [([], []), ([1, 1], [0.0, 1.0]), ([0, 1], [0.0, math.nan])])
def test_where_nothing_can_be_ranked_it_is_not_defined(labels: list[int], scores: list[float]) -> None:
    assert math.isnan(partial_auroc(np.array(labels, int), np.array(scores)))


def test_an_evaluation_has_it_exactly_at_a_site_and_pooled_over_sites_that_differ() -> None:
    """Of all scores together: means of the sites' own would be another number."""
    problem = build(model="mlp")
    x, _ = point(problem, 1)
    sites = [samples(*batch(seed, positives, 60)) for seed, positives in ((1, 40), (2, 5))]
    every = [problem.metrics(x, None, data) for data in sites]
    scored = [(data.targets().numpy(), problem.logits(x, data).numpy()) for data in sites]
    for metrics, (labels, scores) in zip(every, scored, strict=True):
        assert metrics["partial-auroc"] == pytest.approx(partial_auroc(labels, scores))
    labels, scores = (np.concatenate(part) for part in zip(*scored, strict=True))
    assert pool(every)["partial-auroc"] == pytest.approx(partial_auroc(labels, scores), abs=0.01)
    others = make("bce", model="mlp")
    assert "partial-auroc" not in pool([others.metrics(x, None, data) for data in sites])


def test_a_hospital_tells_it_of_groups_as_it_does_the_auroc() -> None:
    problem = build(model="mlp")
    x, _ = point(problem, 1)
    exact = problem.metrics(x, None, samples(*batch(0, 90, 180)))
    told = coarse(exact, 270, 10)
    assert told.keys() == exact.keys()
    assert told["partial-auroc"] == pool([told])["partial-auroc"], "it follows from the groups, and says no more"
    assert told["auroc"] == pool([told])["auroc"]
