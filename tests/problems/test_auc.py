"""The AUC objectives against what is known of them in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.problems.auc import AucMargin
from edelweiss.strategies.codasca import Codasca
from tests.problems.example import FEATURES, batch, make, point, samples
from tests.strategies.halves import drive

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
    assert (other_gy - gy).item() == pytest.approx(2 * 1.5 / 4), "2p(1-p) times the difference, over 4p(1-p)"


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
    problem = make("auc", score="identity", prior=prior, normalise=False)
    x = torch.zeros(FEATURES + 3, dtype=torch.float64)
    x[FEATURES + 1 :] = 1.0
    y = torch.tensor([-1.0], dtype=torch.float64)  # silences the term with 2(1+α)
    for label, weight in ((1, 1 - prior), (0, prior)):
        inputs = torch.zeros(1, FEATURES, dtype=torch.float64)
        gx, _ = problem.gradient(x, y, (inputs, torch.tensor([label])))
        own, other = (-2, -1) if label else (-1, -2)
        assert gx[own].item() == pytest.approx(2 * weight)
        assert gx[other].item() == 0


# ---------------------------------------------------------------------- the scale


@pytest.mark.parametrize("name", ["auc", "auc-margin"])
@pytest.mark.parametrize("prior", [1e-4, 0.1, 0.5, 0.9])
def test_normalised_gradients_are_the_papers_over_4p_of_1_less_p(name: str, prior: float) -> None:
    """So the saddle point is the same, and at p = 1/2 every bit is; the loss is reported as the papers print it."""
    own, papers = (make(name, prior=prior, model="mlp", normalise=normalise) for normalise in (True, False))
    x, y = point(own, 0)
    assert y is not None
    data = batch(1, 3, 9)
    (gx, gy), (wanted_x, wanted_y) = own.gradient(x, y, data), papers.gradient(x, y, data)
    unit = 4 * prior * (1 - prior)
    torch.testing.assert_close(gx * unit, wanted_x, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(gy * unit, wanted_y, rtol=1e-12, atol=1e-15)
    assert prior != 0.5 or (torch.equal(gx, wanted_x) and torch.equal(gy, wanted_y))
    assert loss(own, x, y, data) == loss(papers, x, y, data)
    terms = [problem.dual_terms(x, data) for problem in (own, papers)]
    assert all(torch.equal(*both) for both in zip(*terms, strict=True)), "the best α is the same"


@pytest.mark.parametrize("share", [0.005, 0.5])
def test_the_saddle_point_is_where_it_was(share: float) -> None:
    """Descent ascent from the scalars' start ends at a = E[h|+], b = E[h|-], α = E[h|-] - E[h|+], as fast at 0.5 %."""
    inputs, labels = batch(1, round(2000 * share), 2000 - round(2000 * share))
    problem = make("auc", prior=share)
    x, y = problem.initial()["x"], problem.initial()["y"]
    h = torch.sigmoid(problem.logits(x, samples(inputs, labels)))
    a, b = h[labels == 1].mean(), h[labels == 0].mean()
    for _ in range(300):
        gx, gy = problem.gradient(x, y, (inputs, labels))
        x[-2:] -= 0.1 * gx[-2:]  # the network stands still
        y = y + 0.1 * gy
    found = torch.stack([*x[-2:], y[0]])
    torch.testing.assert_close(found, torch.stack([a, b, b - a]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1]])
def test_one_class_alone_stays_without_gradients(labels: list[int]) -> None:
    """At a site with its own α p is 0 or 1 then, and so is 4p(1-p)."""
    truth = torch.tensor(labels)
    problem = make("auc", prior=0.1).of_site(truth)
    x, y = point(problem, 0)
    gx, gy = problem.gradient(x, y, (batch(0, 0, len(labels))[0], truth))
    assert not gx.any()
    assert not gy.any()


def test_codasca_with_normalised_losses_takes_the_papers_steps_at_another_step_size() -> None:
    """γ, too, is then a part of the normalised loss: 0.002 is 0.4 % of a's curvature at every p, not 10 % at 1 %."""
    data, p = [batch(k, 2, 18) for k in range(3)], 0.1
    unit = 4 * p * (1 - p)
    ends = []
    for normalise, lr, gamma in ((True, 0.1, 0.5), (False, 0.1 / unit, 0.5 * unit)):
        problem = make("auc", prior=p, normalise=normalise)
        strategy = Codasca(local_steps=5, lr=lr, gamma=gamma)
        oracles = [_Fixed(problem, own) for own in data]
        ends.append(drive(strategy, problem.initial(), lambda k, r, o=oracles: o[k], 4, 3)[-1])  # type: ignore[misc]
    for name in ("x", "y"):
        torch.testing.assert_close(ends[0][name], ends[1][name], rtol=1e-9, atol=1e-12)


class _Fixed:
    """An oracle with one batch."""

    def __init__(self, problem: Any, data: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.problem, self.data = problem, data

    def gradient(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.problem.gradient(x, y, self.data)

    def project(self, y: torch.Tensor) -> torch.Tensor:
        return y
