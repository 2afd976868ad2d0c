"""The AUC objectives against what is known of them in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edelweiss.problems.auc import AucMargin
from tests.problems.example import FEATURES, batch, make, point, samples

POSITIVES, NEGATIVES = 7, 23
P = POSITIVES / (POSITIVES + NEGATIVES)


def loss(problem, x, y, data) -> float:  # type: ignore[no-untyped-def]
    return float(problem.metrics(x, y, samples(*data))["loss"])


@pytest.mark.parametrize("score", ["identity", "sigmoid"])
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_optimum_for_fixed_scores(score: str, model: str) -> None:
    """a = E[h|+], b = E[h|-], α = E[h|-] - E[h|+]; the value is p(1-p) E[(1 - h⁺ + h⁻)²] - p(1-p)."""
    problem = make("auc", score=score, prior=P, model=model)
    x, _ = point(problem, 0)
    inputs, labels = batch(1, POSITIVES, NEGATIVES)
    logits = problem.logits(x, samples(inputs, labels)).numpy()
    h = logits if score == "identity" else 1 / (1 + np.exp(-logits))
    positive, negative = h[labels.numpy() == 1], h[labels.numpy() == 0]
    x[-2:] = torch.tensor([positive.mean(), negative.mean()])
    y = torch.tensor([negative.mean() - positive.mean()])

    gx, gy = problem.gradient(x, y, (inputs, labels))
    assert gx[-2:].abs().max() < 1e-12
    assert gy is not None
    assert gy.abs().max() < 1e-12
    pairs = np.mean([(1 - hp + hn) ** 2 for hp in positive for hn in negative])
    value = loss(problem, x, y, (inputs, labels))
    assert value == pytest.approx(P * (1 - P) * (pairs - 1), rel=1e-9)
    # A minimum in a and b, a maximum in α.
    for step in (-0.1, 0.1):
        for i in (-2, -1):
            other = x.clone()
            other[i] += step
            assert loss(problem, other, y, (inputs, labels)) > value
        assert loss(problem, x, y + step, (inputs, labels)) < value


@pytest.mark.parametrize("score", ["identity", "sigmoid"])
def test_margin_one_with_alpha_shifted_is_auc_up_to_a_constant(score: str) -> None:
    auc = make("auc", score=score, prior=0.3, model="mlp")
    margin = make("auc-margin", score=score, prior=0.3, margin=1.0, model="mlp")
    differences = []
    for seed in range(5):
        x, y = point(auc, seed)
        assert y is not None
        data = batch(seed, seed, 6)
        gx, gy = auc.gradient(x, y, data)
        other_gx, other_gy = margin.gradient(x, 1 + y, data)
        torch.testing.assert_close(gx, other_gx, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(gy, other_gy, rtol=1e-10, atol=1e-12)
        differences.append(loss(margin, x, 1 + y, data) - loss(auc, x, y, data))
    assert differences == pytest.approx([0.3 * 0.7] * 5)  # 2(1+α)p(1-p) - p(1-p)(1+α)² + p(1-p)α² = p(1-p)


def test_a_larger_margin_pushes_the_dual_up_and_nothing_else() -> None:
    near, far = (make("auc-margin", score="sigmoid", prior=0.3, margin=m) for m in (0.5, 2.0))
    x, y = point(near, 1)
    data = batch(2, 3, 5)
    (gx, gy), (other_gx, other_gy) = near.gradient(x, y, data), far.gradient(x, y, data)
    torch.testing.assert_close(gx, other_gx)
    assert gy is not None
    assert other_gy is not None
    assert (other_gy - gy).item() == pytest.approx(2 * 0.3 * 0.7 * 1.5)


def test_projection() -> None:
    y = torch.tensor([-2.0, 0.0, 3.0])
    margin, auc = (make(name, prior=0.3) for name in ("auc-margin", "auc"))
    assert margin.project(y).tolist() == [0, 0, 3]
    assert torch.equal(margin.project(margin.project(y)), margin.project(y))
    assert torch.equal(auc.project(y), y)
    assert y.tolist() == [-2, 0, 3], "the argument is left alone"


def test_a_prior_of_its_own_replaces_that_of_the_sites() -> None:
    problem = make("auc-margin", prior=0.2)
    assert problem.p == 0.2
    data = batch(0, 3, 5)
    x, y = point(problem, 0)
    given = AucMargin(problem.setting, prior=0.7)
    assert torch.equal(given.gradient(x, y, data)[0], make("auc-margin", prior=0.7).gradient(x, y, data)[0])


@pytest.mark.parametrize("prior", [0.01, 0.5, 0.99])
def test_the_prior_weighs_the_classes(prior: float) -> None:
    """(1-p) goes with positives and p with negatives: rarer positives weigh more."""
    problem = make("auc", score="identity", prior=prior)
    x = torch.zeros(FEATURES + 3, dtype=torch.float64)
    x[FEATURES + 1 :] = 1.0
    y = torch.tensor([-1.0], dtype=torch.float64)  # silences the term with 2(1+α)
    for label, weight in ((1, 1 - prior), (0, prior)):
        inputs = torch.zeros(1, FEATURES, dtype=torch.float64)
        gx, _ = problem.gradient(x, y, (inputs, torch.tensor([label])))
        own, other = (-2, -1) if label else (-1, -2)
        assert gx[own].item() == pytest.approx(2 * weight)
        assert gx[other].item() == 0
