"""Patients' gradients from one pass over all rows are those that each row has alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest
import torch
from torch import nn

from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary, Samples
from edelweiss.federation.privacy_account import SENSITIVITY
from edelweiss.models import MODELS
from edelweiss.problems import PROBLEMS, patients
from edelweiss.problems.network import NetworkProblem
from edelweiss.problems.patients import Rows, Term, clipped_sum, public_gradient
from tests.client_app.patients import IMAGE, TABLE, moved, problem_of, samples_of

PRIVATE_PROBLEMS = [name for name, problem in PROBLEMS.items() if not problem.mixes_patients]
IMAGES = ("lenet5", "cnn-mnist", "cnn-cifar", "cnn7", "resnet18-gn", "densenet121-gn")
SHAPES = {"linear": TABLE, "mlp": TABLE, "dnn": TABLE} | dict.fromkeys(IMAGES, IMAGE) | {"cnn-mnist": (1, 20, 20)}


@pytest.mark.parametrize("model", ["linear", "mlp", "lenet5"])
@pytest.mark.parametrize("name", PRIVATE_PROBLEMS)
def test_of_each_problem(name: str, model: str) -> None:
    compare(name, model)


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(SHAPES))
def test_of_each_network(model: str) -> None:
    compare("auc", model)


def test_every_network_without_batch_norm_is_among_them() -> None:
    same = {"alexnet", "vgg11", "resnet50-gn", "densenet161-gn"}  # layers of the same kinds
    other = {name for name in MODELS.built_in if "bn" in name or f"{name}-gn" in MODELS.built_in}
    assert set(MODELS.built_in) - other - same - {"conv4", "efficientnet-b0"} == set(SHAPES)


def compare(name: str, model: str) -> None:
    """Hold a pass over all rows against one for each: in full, and as norms and clipped sums."""
    setting = replace(problem_of(name, model, SHAPES[model]).setting, dtype=torch.float64)  # no gate is a near thing
    problem, samples = cast("NetworkProblem", PROBLEMS[name](setting)), samples_of(3, SHAPES[model])
    for layer in problem.network.module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    inputs, labels = samples.batch(torch.arange(3))
    batch = inputs.double(), labels
    points = [Term(*moved(problem, 1)), Term(*moved(problem, 2), (-0.7, -0.4))]
    rows = []
    for inputs, labels in zip(*(part.split(1) for part in batch), strict=True):
        row = torch.zeros(len(points[0].x) + len(points[0].dual), dtype=torch.float64)
        for term in points:
            gx, gy = problem.gradient(term.x, term.y, (inputs, labels))
            row[: len(gx)] += term.weights[0] * gx
            if gy is not None:
                row[len(gx) :] += term.weights[1] * gy
        row[problem.network.size :] -= public_gradient(problem, points)
        rows.append(row)
    wanted = torch.stack(rows)
    layers = patients._layers(problem)
    assert layers is not None
    found = patients._Gradients.of(problem, points, batch, layers)
    norms = torch.linalg.vector_norm(wanted, dim=1)
    assert (torch.linalg.vector_norm(found.in_full() - wanted, dim=1) <= 1e-11 * norms).all()
    clip, total = float(norms.median()), torch.zeros(wanted.shape[1], dtype=torch.float64)
    found.add_clipped(total, clip)
    clipped = (wanted * (clip / norms).clamp(max=1)[:, None]).sum(0)
    assert torch.linalg.vector_norm(total - clipped) <= 1e-11 * clip


@pytest.mark.parametrize("name", PRIVATE_PROBLEMS)
def test_what_is_added_without_noise_does_not_tell_how_many_rows_there_are(name: str) -> None:
    """It is found in a pass over the rows, and its last bits must be those that it has without any."""
    problem, samples = problem_of(name, "linear", TABLE), samples_of(40, TABLE)
    layers = patients._layers(problem)
    assert layers is not None
    alone = public_gradient(problem, [Term(*moved(problem, 1))])
    for count in range(1, 41):
        term = Term(*moved(problem, 1))
        patients._Gradients.of(problem, [term], samples.batch(torch.arange(count)), layers)
        assert torch.equal(public_gradient(problem, [term]), alone)


# ---------------------------------------------------------------------- rows that share a pass


def test_a_patient_more_leaves_what_the_others_count() -> None:
    """A model may let rounding decide a gate, and a matrix product of three rows rounds otherwise than one of four."""
    features, half, clip, most = 4, 64, 1.0, 20
    random = torch.Generator().manual_seed(53)
    config = {
        "dataset": "site",
        "sites": 1,
        "algorithm": "fedavg",
        "problem": "bce",
        "model": "mlp",
        "hidden": 2 * half,
    }
    run = RunConfig.parse(config | {"device": "cpu", "dp.epsilon": 3.0})
    problem = run.build_problem(run.setting(DataSummary(shape=(features,)), "cpu"))
    rows = torch.randn(most, features, generator=random)
    samples = Samples(rows, torch.ones(most, dtype=torch.int64), torch.arange(most))

    for _ in range(40):  # models whose first gate is 0 but for rounding
        bias = 0.5 + 1.5 * torch.rand(half, generator=random)
        weights = 1e6 * torch.randn(half, generator=random)
        first, second = torch.zeros(2 * half, features), torch.zeros(2 * half, 2 * half)
        second[0], off, head = torch.cat([weights, -weights]), -torch.ones(2 * half), torch.zeros(2 * half)
        off[0], head[0] = 0.0, 1.0
        model = torch.cat([first.flatten(), bias, bias, second.flatten(), off, head, torch.zeros(1)])
        counts = range(1, most + 1)
        sums = [clipped_sum(problem, samples, Rows(torch.arange(n)), [Term(model, None)], clip) for n in counts]
        assert max((after - before).norm() for before, after in pairwise(sums)) <= SENSITIVITY * clip
