"""The benchmark beside LibAUC: our steps, as it scales them, are those of AUCMLoss and PESG written down by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import edelweiss as ew
from benchmarks.peers.libauc import (
    BATCH,
    PLAIN,
    POSITIVES,
    Batches,
    Dealt,
    Images,
    PesgsAlpha,
    ResNet20,
    followed,
    main,
    trained,
    unit,
)
from edelweiss.client_app.oracle import SiteOracle
from edelweiss.datasets import Samples
from edelweiss.models import MODELS
from tests.problems.example import make
from tests.reference.pesg import pesg, scores

if TYPE_CHECKING:
    from edelweiss.problems.base import Batch

FEATURES, STEPS = 4, 12
JOB = PLAIN | {"lr": 0.7, "epoch_decay": 0.3, "noted": [1, 5, STEPS]}


def data(share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels of which a share is positive."""
    random = np.random.default_rng(3)
    labels = (np.arange(4000) < share * 4000).astype(np.int64)
    inputs = random.normal(0, 1, (4000, FEATURES)) + 0.4 * labels[:, None]
    return torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(labels)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("share", [0.1, 0.01])
def test_the_primal_steps_are_pesgs_and_those_of_alpha_differ_by_one_term(share: float, normalise: bool) -> None:
    inputs, labels = data(share)
    problem = make("auc-margin", prior=share, normalise=normalise, margin=JOB["margin"])
    batches = Batches.drawn(labels, STEPS)
    start = problem.initial()["x"].numpy()
    given = [(inputs[rows].double().numpy(), labels[rows].numpy()) for rows in batches.rows]
    assert {int(part.sum()) for _, part in given} == {POSITIVES}
    points, alphas = pesg(start, given, JOB["lr"], JOB["epoch_decay"], JOB["margin"])

    samples = Samples(inputs, labels, torch.arange(len(labels)))
    scale = 4 * share * (1 - share)  # the papers' scale goes with a step size that is longer by as much
    job = JOB if normalise else JOB | {"lr": JOB["lr"] / scale, "epoch_decay": JOB["epoch_decay"] * scale}
    ours = followed(problem, samples, batches, job, np.array(alphas))
    for step, x in zip(JOB["noted"], ours["x"], strict=True):
        np.testing.assert_allclose(x, points[step], rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours["mean"], np.mean(points[1:], axis=0), rtol=0, atol=1e-12)
    assert np.abs(points[-1] - start).max() > 0.05

    for step, (rows, kinds) in enumerate(given):
        h, (a, b) = scores(points[step], rows), points[step + 1][-2:]
        gap = b - a - (h[kinds == 0].mean() - h[kinds == 1].mean())
        assert ours["alpha"][step] == pytest.approx(max(0, alphas[step + 1] - 2 * JOB["lr"] * gap), abs=1e-12)
        assert abs(gap) > 1e-3


def test_without_libaucs_alpha_local_sgda_goes_on_from_its_own() -> None:
    inputs, labels = data(0.1)
    problem, batches = make("auc-margin", prior=0.1, normalise=True), Batches.drawn(labels, STEPS)
    start = problem.initial()["x"].numpy()
    ours = followed(problem, Samples(inputs, labels, torch.arange(len(labels))), batches, JOB, None)
    assert len(ours["alpha"]) == STEPS
    alpha = 0.0
    for step, x in enumerate((start, ours["x"][0])):
        h, kinds = scores(x, inputs[batches.rows[step]].double().numpy()), labels[batches.rows[step]].numpy()
        alpha += 2 * JOB["lr"] * (JOB["margin"] + h[kinds == 0].mean() - h[kinds == 1].mean() - alpha)
        assert ours["alpha"][step] == pytest.approx(alpha, abs=1e-12)


def test_the_scale_is_that_of_a_batch() -> None:
    assert unit() == pytest.approx(4 * POSITIVES * (BATCH - POSITIVES) / BATCH**2)


def test_resnet20_has_the_papers_parameters_and_takes_small_images() -> None:
    network = ResNet20()
    assert sum(parameter.numel() for parameter in network.parameters()) == 269_137
    for side in (16, 32):
        assert network(torch.zeros(2, 3, side, side)).shape == (2, 1)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--python", "python", "--train", "100"], ["--python", "python", "--seeds", "1"], ["--python", "python"]],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDELWEISS_DATA", raising=False)
    with pytest.raises(SystemExit):
        main(arguments)


def test_pesgs_alpha_takes_pesgs_steps() -> None:
    inputs, labels = data(0.1)
    problem, batches = make("auc-margin", prior=0.1, normalise=True), Batches.drawn(labels, STEPS)
    point = problem.initial()
    given = [(inputs[rows].double().numpy(), labels[rows].numpy()) for rows in batches.rows]
    points, alphas = pesg(point["x"].numpy(), given, JOB["lr"], 0.0, 1.0)
    oracle = Dealt(problem, Samples(inputs, labels, torch.arange(len(labels))), None, torch.Generator())
    method = PesgsAlpha(local_steps=1, lr=JOB["lr"] * unit(), lr_dual=4 * JOB["lr"])
    for step, (x, alpha) in enumerate(zip(points[1:], alphas[1:], strict=True)):
        rows = batches.rows[step]
        oracle.batch = (inputs[rows].double(), labels[rows], batches.weights[step].double())
        point, _ = method.local_update(point, {}, oracle, method.context(step + 1, STEPS, "train", 1))
        np.testing.assert_allclose(point["x"].numpy(), x, rtol=0, atol=1e-12)
        assert point["y"].item() == pytest.approx(alpha, abs=1e-12)


def test_our_recipe_trains_on_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[float] = set()
    gradient = SiteOracle.gradient

    def noted(oracle: SiteOracle, x: torch.Tensor, y: torch.Tensor | None, batch: Batch | None = None) -> Any:
        batch = oracle.draw() if batch is None else batch
        assert batch is not None
        seen.update(batch[0][:, 0, 0, 0].tolist())
        return gradient(oracle, x, y, batch)

    monkeypatch.setattr(SiteOracle, "gradient", noted)
    monkeypatch.setattr("benchmarks.peers.libauc.EVERY", 3)
    pixels = np.random.default_rng(0).normal(size=(300, 3, 16, 16)).astype(np.float32)
    images = Images(pixels, (np.arange(300) % 5 == 0).astype(np.int64), pixels[:4], np.arange(4) % 2)
    known = set(MODELS.given)
    try:
        trained(images, 3, 1, ew.LocalSGDA)
    finally:
        for name in set(MODELS.given) - known:  # other tests ask which models there are
            del MODELS[name]
    assert seen == set(pixels[:, 0, 0, 0].tolist())
