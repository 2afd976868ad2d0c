"""The best dual in closed form, from sums over sites, against a search for the maximum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.problems import PROBLEMS
from edelweiss.problems.capabilities import ClosedFormDual
from edelweiss.problems.network import EVALUATION_BATCH
from edelweiss.problems.saddle import saddle_coefficients
from tests.problems.example import WITH_DATA, batch, given_saddle, make, name_of, opened, point
from tests.reference.losses import value

VARIANTS = [variant for variant in WITH_DATA if ClosedFormDual in PROBLEMS[variant["name"]].__mro__]
# (positives, negatives) of each site: of different sizes and mixes, one without positives and one without negatives.
SITES = [(3, 8), (0, 6), (5, 0), (2, 21)]
PRIOR = 10 / 45
SEEDS = [0, 1, 2, 3, 4]


def pooled(terms: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return Σ_j of numerators over denominators, each summed over the sites."""
    numerators, denominators = (np.sum([term[i].numpy() for term in terms], axis=0) for i in (0, 1))
    total = np.zeros(numerators.shape[1])
    for numerator, denominator in zip(numerators, denominators, strict=True):
        total += numerator / denominator
    return torch.from_numpy(total)


def highest(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a concave function is largest, by ternary search."""
    for _ in range(200):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if function(left) < function(right) else (low, right)
    return (low + high) / 2


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_no_other_dual_gives_a_higher_loss_over_all_samples_of_all_sites(variant: dict[str, Any]) -> None:
    variant = variant | {"prior": PRIOR}
    problem = make(**variant)
    low = 0.0 if variant["name"] == "auc-margin" else -50.0
    for seed in SEEDS:
        x, _ = point(problem, seed)
        batches = [batch(10 * seed + k, *counts) for k, counts in enumerate(SITES)]
        y = problem.project(pooled([problem.dual_terms(x, data) for data in batches]))

        inputs, labels = (np.concatenate([data[i].numpy() for data in batches]) for i in (0, 1))
        assert labels.mean() == pytest.approx(PRIOR)
        best = highest(lambda alpha: value(variant, x.numpy(), np.array([alpha]), inputs, labels), low, 50.0)  # noqa: B023
        assert y.shape == (1,)
        assert y.item() == pytest.approx(best, abs=1e-6)  # as flat as a maximum is, a search finds no more digits


def test_the_clip_of_the_margin_is_seen() -> None:
    """Among the points above there is one where the best α without a constraint is negative, and one where not."""
    duals = []
    for variant in VARIANTS:
        if variant["name"] == "auc-margin":
            problem = make(**variant | {"prior": PRIOR})
            for seed in SEEDS:
                terms = [problem.dual_terms(point(problem, seed)[0], batch(10 * seed + k, *SITES[k])) for k in range(4)]
                duals.append(pooled(terms).item())
    assert min(duals) < -0.01
    assert max(duals) > 0.01


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_a_sample_with_twice_the_weight_counts_as_two(variant: dict[str, Any]) -> None:
    problem = make(**variant)
    x, _ = point(problem, 0)
    inputs, labels = batch(1, 3, 8)
    times = torch.arange(len(labels)) % 3
    weighted = problem.dual_terms(x, (inputs, labels, times.to(x.dtype)))
    written_out = problem.dual_terms(x, (inputs.repeat_interleave(times, 0), labels.repeat_interleave(times)))
    torch.testing.assert_close(weighted, written_out)


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
@pytest.mark.parametrize(("counts", "zero"), [((0, 6), 1), ((5, 0), 0)])
def test_a_batch_of_one_class_adds_nothing_to_the_other(
    variant: dict[str, Any], counts: tuple[int, int], zero: int
) -> None:
    problem = make(**variant)
    numerators, denominators = problem.dual_terms(point(problem, 0)[0], batch(3, *counts))
    assert numerators.shape == (2, 1)
    assert denominators.tolist() == [counts[1], counts[0]]
    assert numerators[zero].item() == 0
    assert numerators[1 - zero].item() != 0


def test_the_best_dual_of_the_saddle_problem() -> None:
    """At any x the mean of b_k - t_k x, where the sites' mean gradient by y is zero."""
    slopes, offsets = saddle_coefficients(5, 6, 3.0, 0)
    slopes, offsets = 20 * slopes, offsets + 1.0  # the mean of b_k is not zero
    sites = [given_saddle(slopes, offsets, k) for k in range(5)]
    for seed in range(3):
        x = torch.from_numpy(np.random.default_rng(seed).normal(size=6))
        y = pooled([site.dual_terms(x, None) for site in sites])
        np.testing.assert_allclose(y, offsets.mean(0) - slopes.mean() * x.numpy(), rtol=0, atol=1e-12)
        gradients = [site.gradient(x, y, None)[1] for site in sites]
        assert torch.stack([g for g in gradients if g is not None]).mean(0).abs().max() < 1e-12
    # At x* it is y*.
    best = pooled([site.dual_terms(sites[0].x_star, None) for site in sites])
    torch.testing.assert_close(best, sites[0].y_star, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- through the oracle


def test_the_oracle_sums_over_a_batch_of_any_size_and_counts_no_gradient() -> None:
    problem = make(**VARIANTS[0])
    x, _ = point(problem, 0)
    inputs, labels = batch(0, 500, 2 * EVALUATION_BATCH)
    oracle = opened(problem, inputs.float(), labels)
    data = inputs, labels
    for one, other in zip(oracle.dual_terms(x, data), problem.dual_terms(x, data), strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    assert (oracle.gradients, oracle.differentiated) == (0, 0)


def test_without_a_batch_the_oracle_sums_over_all_training_samples() -> None:
    problem = make(**VARIANTS[0], dtype=torch.float32)
    x, data = problem.initial()["x"], batch(0, 500, 2 * EVALUATION_BATCH, torch.float32)
    oracle = opened(problem, *data)
    for one, other in zip(oracle.dual_terms(x), problem.dual_terms(x, data), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=0)
    assert (oracle.gradients, oracle.differentiated) == (0, 0)


@pytest.mark.parametrize("sampler", ["uniform", "fixed-positives"])
def test_a_draw_of_more_than_there_is_gives_every_sample_once(sampler: str) -> None:
    problem = make(**VARIANTS[0], dtype=torch.float32)
    oracle = opened(problem, *batch(0, 7, 23, torch.float32), sampler=sampler)
    drawn = oracle.draw(2**62)
    assert drawn is not None
    _, denominators = oracle.dual_terms(problem.initial()["x"], drawn)
    assert denominators.tolist() == [23, 7]


@pytest.mark.slow
def test_a_network_with_batch_norm_is_asked_as_for_a_prediction() -> None:
    """In training mode a sample's score would depend on its batch, and the statistics would move."""
    problem = make("auc", model="resnet18", shape=(3, 32, 32), dtype=torch.float32)
    random = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(6, 3, 32, 32, generator=random), torch.tensor([0, 1, 0, 1, 1, 0])
    x, before = problem.initial()["x"], problem.buffers().clone()
    whole = problem.dual_terms(x, (inputs, labels))
    parts = [problem.dual_terms(x, (inputs[rows], labels[rows])) for rows in (slice(0, 2), slice(2, 6))]
    for i in (0, 1):
        torch.testing.assert_close(whole[i], parts[0][i] + parts[1][i], rtol=1e-4, atol=1e-5)
    assert before.numel()
    assert torch.equal(problem.buffers(), before)
