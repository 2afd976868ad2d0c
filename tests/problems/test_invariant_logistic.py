"""Invariant logistic regression: its gradient, the bias of its estimator, its samples and its metrics."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch

from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary
from edelweiss.problems import Batch, Setting
from edelweiss.problems.invariant_logistic import InvariantLogistic
from tests.reference import losses

LAMBDA, GAMMA = 0.001, 10.0


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem_of(
    inner: int = 5,
    dimension: int = 4,
    ratio: float = 1.0,
    seed: int = 0,
    kind: type[InvariantLogistic] = InvariantLogistic,
) -> InvariantLogistic:
    options = {"inner_samples": inner, "dimension": dimension, "sigma_ratio": ratio}
    return kind(Setting(seed=seed, dtype=torch.float64), **options)  # type: ignore[arg-type]


def regularised(x: np.ndarray) -> float:
    return LAMBDA * sum(GAMMA * v**2 / (1 + GAMMA * v**2) for v in x)


@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (1, 7), (6, 1), (4, 3)])
def test_the_gradient_is_that_of_the_formula(outer: int, inner: int) -> None:
    """With the mean over the views inside the logarithm; views and batch come from equal generators."""
    problem = problem_of(inner)
    eta, b = problem.views(seeded(3), outer)
    assert eta.shape == (outer, inner, 4)

    def value(x: np.ndarray) -> float:
        total = 0.0
        for views, label in zip(eta.numpy(), b.numpy(), strict=True):
            total += math.log(1 + math.exp(-label * np.mean([view @ x for view in views])))
        return total / outer + regularised(x)

    x = np.random.default_rng(1).normal(size=4)
    batch = problem.draw(None, None, seeded(3), outer)
    assert batch is not None
    gx, gy = problem.gradient(torch.from_numpy(x), None, batch)
    assert gy is None
    assert len(batch[1]) == outer
    np.testing.assert_allclose(gx.numpy(), losses.finite_differences(value, x), rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------------- the bias of the estimator

SAMPLES = 300_000
INNER = (1, 2, 4, 8)


class Outside(InvariantLogistic):
    """The common mistake: f of each view, and the mean over the views outside f."""

    def draw(self, samples: None, sampler: None, generator: torch.Generator, size: int) -> Batch:
        eta, b = self.views(generator, size)
        return (b[:, None, None] * eta).flatten(0, 1), b.repeat_interleave(self.inner_samples)


def expectation(inner: float) -> float:
    """Return the expectation of the estimator at x = x*/‖x*‖, along x, without regularisation; by quadrature.

    There the score of a is t ~ N(0, 1), b its sign, and the mean of the views adds N(0, 1/m): the gradient along x is
    -v σ(-v) with v = |t| + w/√m. Inner = ∞ is the gradient itself.
    """
    t, w = np.linspace(0, 8, 2001), np.linspace(-8, 8, 801)
    at_t, at_w = (np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0]) for z in (t, w))
    at_t[0] /= 2
    v = t[:, None] + w / math.sqrt(inner)
    return float(2 * at_t @ (-v / (1 + np.exp(v))) @ at_w)


@cache
def mean_gradient(kind: type[InvariantLogistic], inner: int) -> float:
    """Return the mean of many estimates, along x = x*/‖x*‖, without regularisation."""
    problem = problem_of(inner, 2, kind=kind)
    x = problem.x_star / problem.x_star.norm()
    generator, blocks = seeded(inner), 10
    total = torch.zeros(2, dtype=torch.float64)
    for _ in range(blocks):
        total += problem.gradient(x, None, problem.draw(None, None, generator, SAMPLES // blocks))[0]
    regular = 2 * LAMBDA * GAMMA * x / (1 + GAMMA * x.square()).square()
    return float((total / blocks - regular) @ x)


def bias_falls_like_one_over_m(kind: type[InvariantLogistic]) -> bool:
    true = expectation(math.inf)
    biases = [abs(mean_gradient(kind, m) - true) for m in INNER]
    slope = np.polyfit(np.log(INNER), np.log(biases), 1)[0]
    return bool(abs(slope + 1) < 0.1)


@pytest.mark.slow
def test_the_bias_of_the_estimator_falls_like_one_over_m() -> None:
    assert bias_falls_like_one_over_m(InvariantLogistic)


@pytest.mark.slow
def test_with_the_mean_outside_the_logarithm_it_does_not() -> None:
    assert not bias_falls_like_one_over_m(Outside)
    # It stays where one view has it, however many there are.
    assert mean_gradient(Outside, 8) == pytest.approx(expectation(1), abs=0.003)


@pytest.mark.parametrize("inner", INNER)
def test_the_estimators_expectation_is_the_one_that_quadrature_gives(inner: int) -> None:
    deviation = 0.5 / math.sqrt(SAMPLES)  # of one estimate it is below 0.5
    assert abs(mean_gradient(InvariantLogistic, inner) - expectation(inner)) < 5 * deviation


# ---------------------------------------------------------------------- samples


def test_samples_have_the_stated_distribution() -> None:
    """Of many: a has unit covariance, the views of one ξ spread by σ around it, and b is the side of a."""
    problem = problem_of(inner=50, dimension=3, ratio=2.0)
    eta, b = problem.views(seeded(0), 20_000)
    means, within = eta.mean(1), eta.var(1)
    torch.testing.assert_close(within.mean(0), torch.full((3,), 4.0, dtype=torch.float64), rtol=0.02, atol=0)
    covariance = means.T.cov()
    torch.testing.assert_close(covariance, (1 + 4 / 50) * torch.eye(3, dtype=torch.float64), rtol=0.03, atol=0.03)
    assert set(b.tolist()) == {-1.0, 1.0}
    exact, labels = problem_of(inner=1, dimension=3, ratio=0.0).views(seeded(0), 20_000)
    assert torch.equal((exact[:, 0] @ problem.x_star).sign(), labels)
    assert abs(float(labels.mean())) < 0.03


def test_the_oracle_draws_ahead_and_no_batch_comes_twice() -> None:
    asked: list[int] = []

    class Counting(InvariantLogistic):
        def draw(self, samples: None, sampler: None, generator: torch.Generator, size: int) -> Batch | None:
            asked.append(size)
            return super().draw(samples, sampler, generator, size)

    def oracle(site: int = 0) -> SiteOracle:
        return SiteOracle(problem_of(kind=Counting), None, None, stream(0, site, 1, 0), 2)

    one, again, other = oracle(), oracle(), oracle(1)
    x = torch.ones(4, dtype=torch.float64)
    drawn = [one.gradient(x)[0] for _ in range(100)]
    assert len({tuple(g.tolist()) for g in drawn}) == 100
    assert asked == [32, 64, 128], "a hundred batches of two are a few calls, and a short round is no large one"
    assert all(torch.equal(g, again.gradient(x)[0]) for g in drawn)
    assert not torch.equal(other.gradient(x)[0], drawn[0])
    assert (one.gradients, one.differentiated) == (100, 200)
    batch = one.draw(64)
    assert batch is not None
    assert (batch[0].shape, batch[1].shape) == ((64, 4), (64,))
    assert all(len(part) == 2 for part in one.draw() or ())
    # What is drawn ahead is bounded, however large the samples are: here one is more than the bound.
    large = SiteOracle(problem_of(1000, 100), None, None, stream(0, 0, 1, 0), 2)
    assert large.problem.draws_ahead == 0
    assert all(len(part) == 2 for part in large.draw() or ())


def test_gradients_belong_to_the_caller() -> None:
    problem = problem_of()
    x, batch = problem.initial()["x"] + 1, problem.draw(None, None, seeded(0), 3)
    first, _ = problem.gradient(x, None, batch)
    kept = first.clone()
    assert not torch.equal(problem.gradient(x + 1, None, batch)[0], kept)
    assert torch.equal(first, kept)
    first.fill_(7.0)
    assert torch.equal(problem.gradient(x, None, batch)[0], kept)
    assert torch.equal(x, torch.ones_like(x))


# ---------------------------------------------------------------------- metrics


def test_metrics_are_those_of_fresh_samples_that_the_seed_fixes() -> None:
    problem = problem_of(dimension=10)
    at_zero = problem.metrics(problem.initial()["x"], None, None)
    assert at_zero["loss"] == pytest.approx(math.log(2))
    assert problem.metrics(problem.x_star, None, None)["accuracy"] == 1
    assert problem.metrics(-problem.x_star, None, None)["accuracy"] == 0
    # Two directions disagree with the probability angle / π.
    x = problem.x_star + torch.from_numpy(np.random.default_rng(0).normal(size=10))
    cosine = float(x @ problem.x_star / (x.norm() * problem.x_star.norm()))
    metrics = problem.metrics(x, None, None)
    assert metrics["accuracy"] == pytest.approx(1 - math.acos(cosine) / math.pi, abs=0.006)
    assert problem_of(dimension=10, inner=1, ratio=3.0).metrics(x, None, None) == metrics
    assert problem_of(dimension=10, seed=1).metrics(x, None, None) != metrics


def test_the_loss_of_an_evaluation_is_the_objective() -> None:
    """The mean of many exact estimates of the loss, from samples of another stream."""
    problem = problem_of(inner=1, ratio=0.0)
    x = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    signed, _ = problem.draw(None, None, seeded(5), 200_000) or (None, None)
    assert signed is not None
    expected = float(torch.log1p(torch.exp(-(signed @ x))).mean()) + regularised(x.numpy())
    assert problem.metrics(x, None, None)["loss"] == pytest.approx(expected, abs=0.01)


def test_the_run_config_says_what_is_built() -> None:
    own = {"inner-samples": 3, "sigma-ratio": 0.5, "dimension": 7}
    keys = {"problem": "invariant-logistic", "algorithm": "fcsg", "seed": 2}
    config = RunConfig.parse(keys | {f"invariant-logistic.{key}": value for key, value in own.items()})
    problem = config.build_problem(config.setting(DataSummary(), "cpu"))
    assert isinstance(problem, InvariantLogistic)
    assert (problem.inner_samples, problem.sigma_ratio, problem.dimension, problem.setting.seed) == (3, 0.5, 7, 2)
    assert problem.initial()["x"].tolist() == [0.0] * 7
