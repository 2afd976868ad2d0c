"""``robust``: the ball, the perturbation's gradient, and what an evaluation tells of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import DataSummary, load_site, load_test, standardisation
from edelweiss.datasets.samples import moments
from edelweiss.problems.robust import Robust
from edelweiss.server_app import simulate
from tests.problems.example import FEATURES, batch, make, point, samples

IMAGE = (1, 12, 12)


def linear(seed: int = 0, **variant: Any) -> tuple[Robust, torch.Tensor]:
    problem: Robust = make("robust", **{"classes": 3, **variant})
    return problem, point(problem, seed)[0]


def test_the_gradient_of_the_perturbation_in_closed_form() -> None:
    """Of a linear network: Wᵀ times the mean of softmax - one-hot; of the squared loss 2 Wᵀ times the mean residual."""
    inputs, labels = batch(3, 4, 7)
    truth = torch.nn.functional.one_hot(labels, 3).double()
    nu = torch.tensor([0.3, -0.2, 0.1, 0.5], dtype=torch.float64)
    for loss in ("cross-entropy", "squared"):
        problem, x = linear(criterion=loss)
        weights, biases = x[: 3 * FEATURES].view(3, FEATURES), x[3 * FEATURES :]
        logits = (inputs + nu) @ weights.T + biases
        errors = logits.softmax(1) - truth if loss == "cross-entropy" else 2 * (logits - truth)
        _, gy = problem.gradient(x, nu, (inputs, labels))
        torch.testing.assert_close(gy, weights.T @ errors.mean(0))


def test_without_a_perturbation_it_is_cross_entropy_but_its_gradient_is_there() -> None:
    problem, x = linear()
    plain = make("cross-entropy", classes=3)
    drawn = batch(0, 5, 5)
    gx, gy = problem.gradient(x, problem.initial()["y"], drawn)
    assert torch.equal(gx, plain.gradient(x, None, drawn)[0])
    assert gy is not None
    assert gy.norm() > 0.01  # or ν could never leave 0


def test_the_perturbation_of_images_has_their_shape_and_is_added_pixel_by_pixel() -> None:
    problem = make("robust", shape=IMAGE, classes=10)
    start = problem.initial()
    assert start["y"].shape == (144,)
    assert not start["y"].any()
    x = start["x"]
    random = torch.Generator().manual_seed(0)
    images = torch.rand(5, *IMAGE, generator=random, dtype=torch.float64)
    labels = torch.arange(5)
    nu = torch.rand(144, generator=random, dtype=torch.float64)
    gx, _ = problem.gradient(x, nu, (images, labels))
    plain = make("cross-entropy", shape=IMAGE, classes=10)
    torch.testing.assert_close(gx, plain.gradient(x, None, (images + nu.view(IMAGE), labels))[0])


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4),
    st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4),
    st.floats(0.01, 100.0),
)
def test_the_projection_is_the_nearest_point_of_the_ball(one: list[float], other: list[float], radius: float) -> None:
    problem, _ = linear(radius=radius)
    y, z = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    p = problem.project(y)
    assert p.norm() <= radius * (1 + 1e-12)
    if y.norm() <= radius:
        assert torch.equal(p, y)
    torch.testing.assert_close(problem.project(p), p)
    # The variational inequality characterises the projection onto a convex set.
    inside = problem.project(z)
    assert float((y - p) @ (inside - p)) <= 1e-9 * (1 + float(y.norm())) * (1 + radius)


def test_ascent_finds_the_worst_perturbation_of_a_linear_model() -> None:
    """With two classes it is ±radius along the difference of the rows of the weights."""
    problem, x = linear(classes=2, radius=0.7)
    weights = x[: 2 * FEATURES].view(2, FEATURES)
    inputs, labels = batch(2, 9, 0)  # of one class: the loss is monotone in the logit
    y = problem.initial()["y"]
    for _ in range(300):
        _, gy = problem.gradient(x, y, (inputs, labels))
        assert gy is not None
        y = problem.project(y + 0.5 * gy)
    worst = weights[0] - weights[1]
    torch.testing.assert_close(y, 0.7 * worst / worst.norm(), rtol=1e-5, atol=1e-6)


def test_metrics_under_the_perturbation_and_without_it() -> None:
    problem, x = linear(seed=1)
    inputs, labels = batch(5, 12, 20)
    held_out = samples(inputs, labels)
    nu = torch.full((FEATURES,), 1.5, dtype=torch.float64)
    metrics = problem.metrics(x, nu, held_out)
    plain = make("cross-entropy", classes=3)
    clean, moved = (plain.metrics(x, None, samples(z, labels)) for z in (inputs, (inputs.float() + nu.float())))
    assert metrics["clean-loss"] == pytest.approx(clean["loss"])
    assert metrics["loss"] == pytest.approx(moved["loss"], rel=1e-6)
    assert metrics["robust-accuracy"] == pytest.approx(moved["accuracy"])
    assert (metrics["accuracy"], metrics["worst-class"]) == (clean["accuracy"], clean["worst-class"])
    assert clean["accuracy"] != moved["accuracy"]
    again = problem.metrics(x, nu * 0, held_out)
    assert (again["loss"], again["robust-accuracy"]) == (again["clean-loss"], again["accuracy"])
    assert torch.equal(held_out.inputs, inputs.float())  # the perturbation is not written into the data


@pytest.mark.slow
def test_robust_training_withstands_what_plain_training_does_not(tmp_path: Any) -> None:
    """One ν for everybody, as strong as 4 deviations of a pixel: accuracy under the ν that a run finds."""
    base = {
        "dataset": "digits",
        "model": "linear",
        "rounds": 20,
        "sites": 3,
        "workers": 1,
        "device": "cpu",
        "runs-dir": str(tmp_path),
        "problem": "robust",
        "algorithm": "local-sgda",
        "robust.radius": 4.0,
        "local-sgda.lr-dual": 2.0,
    }
    result = simulate(base)
    last, y = result.metrics[-1], result.arrays["y"]
    assert y.shape == (64,)
    assert 0.5 < np.linalg.norm(y) <= 4 * (1 + 1e-5)
    assert last["robust-accuracy"] == last["central"]["robust-accuracy"] > 0.9
    # The same ν against a model that was trained without one.
    plain = simulate(base | {"problem": "cross-entropy", "algorithm": "fedavg"})
    config = RunConfig.parse(base)
    problem = config.build_problem(config.setting(DataSummary(shape=(1, 8, 8), classes=10), "cpu"))
    parts = [moments(load_site(config.data(), site, 3).train) for site in range(3)]
    test = load_test(config.data())
    assert test is not None
    test = test.standardised(
        *standardisation(*([sum(c) for c in zip(*m, strict=True)] for m in zip(*parts, strict=True)))
    )
    attacked, defended = (
        problem.metrics(torch.from_numpy(model.arrays["x"]), torch.from_numpy(y), test) for model in (plain, result)
    )
    assert defended["loss"] == pytest.approx(last["loss"], rel=1e-4)
    assert float(str(attacked["loss"])) > float(str(defended["loss"]))


@pytest.mark.parametrize(("key", "value"), [("robust.radius", 0.0), ("robust.criterion", "hinge")])
def test_bad_keys(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({"problem": "robust", "algorithm": "local-sgda", key: value})
    assert caught.value.keys == [key]
