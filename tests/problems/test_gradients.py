"""Gradients of every problem: against finite differences in float64, on awkward batches, and who owns them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.problems import Problem
from edelweiss.problems.saddle import saddle_coefficients
from tests.problems.example import FEATURES, WITH_DATA, batch, given_saddle, make, name_of, point, samples
from tests.reference import losses

BATCHES = [(3, 5), (1, 9), (0, 4), (4, 0), (1, 0)]
variants = pytest.mark.parametrize("variant", WITH_DATA, ids=name_of)
batches = pytest.mark.parametrize(("positives", "negatives"), BATCHES)


def numpy(tensor: Tensor | None) -> np.ndarray:
    return np.zeros(0) if tensor is None else tensor.numpy()


@variants
@batches
def test_of_a_linear_network_are_those_of_the_formula(variant: dict[str, Any], positives: int, negatives: int) -> None:
    """Value and gradients against the loss written out sample by sample."""
    problem = make(**variant)
    x, y = point(problem, 0)
    inputs, labels = batch(10, positives, negatives)
    gx, gy = problem.gradient(x, y, (inputs, labels))
    arguments = (inputs.numpy(), labels.numpy())
    expected = losses.finite_differences(lambda v: losses.value(variant, v, numpy(y), *arguments), x.numpy())
    expected *= losses.trained(variant)
    np.testing.assert_allclose(gx.numpy(), expected, rtol=1e-6, atol=1e-8)
    assert np.abs(expected).max() > 1e-3
    if y is None:
        assert gy is None
    else:
        assert gy is not None
        expected = losses.finite_differences(lambda v: losses.value(variant, x.numpy(), v, *arguments), y.numpy())
        expected *= losses.trained(variant)
        np.testing.assert_allclose(gy.numpy(), expected, rtol=1e-6, atol=1e-8)
    loss = problem.metrics(x, y, samples(inputs, labels))["loss"]
    assert loss == pytest.approx(losses.value(variant, x.numpy(), numpy(y), *arguments), rel=1e-9)


@variants
@pytest.mark.parametrize(("positives", "negatives"), BATCHES[:3])
def test_of_a_deeper_network_are_those_of_its_loss(variant: dict[str, Any], positives: int, negatives: int) -> None:
    """Along random directions, and in each scalar; the loss is a multiple of the one that an evaluation reports."""
    problem = make(**variant, model="mlp")
    x, y = point(problem, 3)
    inputs, labels = batch(7, positives, negatives)
    held_out = samples(inputs, labels)
    gx, gy = problem.gradient(x, y, (inputs, labels))
    random = np.random.default_rng(0)
    directions = [torch.from_numpy(random.normal(size=len(x))) for _ in range(4)]
    directions += list(torch.eye(len(x), dtype=torch.float64)[problem.network.size - 1 :])  # head's bias, a, b

    def loss(x: Tensor, y: Tensor | None) -> float:
        return losses.trained(variant) * float(str(problem.metrics(x, y, held_out)["loss"]))

    for direction in directions:
        slope = (loss(x + 1e-6 * direction, y) - loss(x - 1e-6 * direction, y)) / 2e-6
        assert float(gx @ direction) == pytest.approx(slope, rel=1e-5, abs=1e-8)
    if y is not None:
        assert gy is not None
        for slope, unit in zip(gy.tolist(), torch.eye(len(y), dtype=y.dtype), strict=True):
            difference = loss(x, y + 1e-4 * unit) - loss(x, y - 1e-4 * unit)
            assert slope == pytest.approx(difference / 2e-4, rel=1e-5, abs=1e-8)


def test_of_the_saddle_problem() -> None:
    t, b = saddle_coefficients(3, 6, 2.0, 0)
    for site in range(3):
        problem = given_saddle(t, b, site)
        random = np.random.default_rng(site)
        x, y = random.normal(size=(2, 6))

        def value(x: np.ndarray, y: np.ndarray, site: int = site) -> float:
            return float(5 * x @ x - y @ y / 2 + b[site] @ y - t[site] * (y @ x))

        gx, gy = problem.gradient(torch.from_numpy(x), torch.from_numpy(y), None)
        expected = losses.finite_differences(lambda v: value(v, y), x)  # noqa: B023  called at once
        np.testing.assert_allclose(gx.numpy(), expected, atol=1e-8)
        assert gy is not None
        np.testing.assert_allclose(gy.numpy(), losses.finite_differences(lambda v: value(x, v), y), atol=1e-8)  # noqa: B023


@variants
def test_saturated_scores_and_one_class_give_finite_gradients(variant: dict[str, Any]) -> None:
    """Logits of ±1e4, in float32: sigmoids are exactly 0 and 1, their logarithms and slopes must not be NaN."""
    problem = make(**variant, dtype=torch.float32)
    x, y = point(problem, 0)
    x[:FEATURES] = torch.tensor([1e4, 0, 0, 0])
    for labels in ([0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]):
        inputs = torch.zeros(4, FEATURES)
        inputs[:, 0] = torch.tensor([1.0, 1.0, -1.0, -1.0])
        gx, gy = problem.gradient(x, y, (inputs, torch.tensor(labels)))
        assert gx.isfinite().all()
        assert gy is None or gy.isfinite().all()
        metrics = problem.metrics(x, y, samples(inputs, torch.tensor(labels)))
        assert np.isfinite(float(str(metrics["loss"])))


def test_cross_entropy_of_a_score_that_is_surely_wrong_keeps_its_slope() -> None:
    """By a logit of ±1e4 with the other label it is ±1: taken through a sigmoid it would be 0, and never corrected."""
    problem = make("bce", prior=0.5, dtype=torch.float32)
    x = torch.zeros(FEATURES + 1)
    for logit, label in ((1e4, 0), (-1e4, 1)):
        x[FEATURES] = logit
        gx, _ = problem.gradient(x, None, (torch.zeros(3, FEATURES), torch.full((3,), label)))
        assert gx[FEATURES].item() == pytest.approx(1 - 2 * label)


@variants
def test_a_batch_of_one_class_is_its_part_of_the_whole(variant: dict[str, Any]) -> None:
    """The gradient of a mixed batch is the mean of those of its positives and of its negatives: nothing else."""
    problem = make(**variant)
    x, y = point(problem, 4)
    inputs, labels = batch(5, 3, 9)
    whole, _ = problem.gradient(x, y, (inputs, labels))
    parts = [problem.gradient(x, y, (inputs[labels == c], labels[labels == c]))[0] for c in (1, 0)]
    torch.testing.assert_close(whole, (3 * parts[0] + 9 * parts[1]) / 12, rtol=1e-9, atol=1e-12)


def every_problem() -> list[tuple[Problem, Any]]:
    t, b = saddle_coefficients(2, 5, 1.0, 0)
    t = t * np.array([0.0, 1.0])  # a coupling of zero must not hand out y itself
    saddles: list[tuple[Problem, Any]] = [(given_saddle(t, b, site), None) for site in (0, 1)]
    return saddles + [(make(**v, model=model), batch(1, 3, 5)) for v in WITH_DATA for model in ("linear", "mlp")]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2 + 2 * len(WITH_DATA)))
def test_gradients_belong_to_the_caller(number: int) -> None:
    """No later call overwrites them, and writing to them changes neither the point nor later gradients."""
    problem, data = every_problem()[number]
    start = problem.initial()
    x, y = start["x"], start.get("y")
    first = problem.gradient(x, y, data)
    kept = [g.clone() for g in first if g is not None]
    elsewhere = problem.gradient(x + torch.arange(len(x)) / 10, None if y is None else y + 1, data)
    assert not torch.equal(elsewhere[0], kept[0])
    assert all(torch.equal(g, then) for g, then in zip((g for g in first if g is not None), kept, strict=True))
    before = {name: vector.clone() for name, vector in start.items()}
    for g in (*first, *elsewhere):
        if g is not None:
            g.fill_(1e6)
    assert all(torch.equal(start[name], before[name]) for name in start)
    again = problem.gradient(x, y, data)
    assert all(torch.equal(g, then) for g, then in zip((g for g in again if g is not None), kept, strict=True))
    assert not any(g.requires_grad for g in again if g is not None)


@variants
def test_asking_twice_on_one_batch_at_two_points(variant: dict[str, Any]) -> None:
    """As variance reduction does: the answer depends on the point and the batch, not on what was asked before."""
    problem = make(**variant, model="mlp")
    (x, y), (other_x, other_y) = point(problem, 1), point(problem, 2)
    data = batch(3, 2, 6)
    here, there = problem.gradient(x, y, data)[0], problem.gradient(other_x, other_y, data)[0]
    assert torch.equal(problem.gradient(x, y, data)[0], here)
    assert torch.equal(make(**variant, model="mlp").gradient(other_x, other_y, data)[0], there)
    moved = x.clone()
    assert torch.equal(problem.gradient(moved, y, data)[0], here)
    moved.add_(0.1)  # in place, as local steps do
    assert not torch.equal(problem.gradient(moved, y, data)[0], here)
    assert torch.equal(problem.gradient(x + 0.1, y, data)[0], problem.gradient(moved, y, data)[0])


@variants
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_start_is_a_pure_function_of_the_seed(variant: dict[str, Any], model: str) -> None:
    problem = make(**variant, model=model)
    state = torch.get_rng_state()
    first = problem.initial()
    kept = {name: vector.clone() for name, vector in first.items()}
    torch.manual_seed(77)
    torch.rand(3)
    again = make(**variant, model=model).initial()
    assert all(torch.equal(again[name], kept[name]) for name in kept)
    # It is the caller's, and training changes nothing about it.
    first["x"].fill_(5.0)
    problem.gradient(first["x"], first.get("y"), batch(0, 1, 1))
    torch.set_rng_state(state)
    assert again["x"].abs().max() < 5
    scalars = problem.network.size
    assert not again["x"][scalars:].any()
    assert all(entry == (1 / 3 if variant["name"] == "fair" else 0) for entry in again.get("y", torch.zeros(1)))


def test_the_start_of_the_saddle_problem_is_the_same_at_all_sites_and_another_for_another_seed() -> None:
    t, b = saddle_coefficients(3, 6, 1.0, 0)
    starts = [given_saddle(t, b, site, seed=4).initial() for site in (-1, 0, 2)]
    assert all(torch.equal(start[name], starts[0][name]) for start in starts for name in ("x", "y"))
    problem = given_saddle(t, b, 0, seed=4)
    problem.initial()["x"].zero_()
    assert torch.equal(problem.initial()["x"], starts[0]["x"])
    assert not torch.equal(given_saddle(t, b, 0, seed=5).initial()["x"], starts[0]["x"])
    assert not torch.equal(starts[0]["x"], starts[0]["y"])


@pytest.mark.parametrize("variant", WITH_DATA, ids=name_of)
def test_bfloat16_changes_little_and_something(variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edelweiss.models.architecture.supports_bf16", lambda kind: True)  # emulated, if need be
    whole = make(**variant, model="mlp", dtype=torch.float32)
    short = make(**variant, model="mlp", dtype=torch.float32, amp="bf16")
    x, y = point(whole, 5)
    drawn = batch(6, 8, 24, torch.float32)
    for exact, rough in zip(whole.gradient(x, y, drawn), short.gradient(x, y, drawn), strict=True):
        if exact is not None and rough is not None:
            assert rough.dtype == torch.float32
            torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.05)
    rough = short.gradient(x, y, drawn)[0]
    assert not torch.equal(whole.gradient(x, y, drawn)[0], rough)
    data = samples(*drawn[:2])
    assert whole.metrics(x, y, data) == short.metrics(x, y, data), "it is evaluated in float32"
    assert torch.equal(short.gradient(x, y, drawn)[0], rough), "and goes on in bfloat16"
