"""Several labels at once: each label's equations are those of one, over the samples of which it is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.datasets import make_sampler
from edelweiss.datasets.labels import UNKNOWN
from edelweiss.federation import Reply, Site
from edelweiss.problems import PROBLEMS
from edelweiss.problems.scalars import restore_scalars
from edelweiss.strategies.coda import Coda
from tests.problems.example import FEATURES, make, point, samples
from tests.reference import losses

LABELS, PRIORS = ("Edema", "Cardio.megaly", "Effusion"), (0.1, 0.3, 0.6)
L = len(LABELS)
VARIANTS: list[dict[str, Any]] = [
    {"name": "auc", "score": "sigmoid"},
    {"name": "auc", "score": "identity"},
    {"name": "auc-margin", "score": "sigmoid", "margin": 0.4},
    {"name": "bce"},
    {"name": "bce-weighted"},
    {"name": "bce-adjusted", "tau": 0.7},
    {"name": "bce-focal", "gamma": 1.5, "alpha": 0.3},
    {"name": "auprc"},
]
variants = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(map(str, variant.values())))


def build(variant: dict[str, Any], **more: Any) -> Any:
    return make(**variant, labels=LABELS, priors=PRIORS, **more)


def batch(seed: int, rows: int = 12, unknown: float = 0.3) -> tuple[Tensor, Tensor]:
    """Return inputs and labels, some of them unknown; of the first label there is a positive and a negative."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, (rows, L))
    labels[random.random((rows, L)) < unknown] = UNKNOWN
    labels[:2, 0] = 0, 1
    inputs = random.normal(size=(rows, FEATURES)).astype(np.float32)
    return torch.from_numpy(inputs).double(), torch.from_numpy(labels)


def value(
    variant: dict[str, Any], x: np.ndarray, y: np.ndarray, inputs: np.ndarray, labels: np.ndarray, trained: bool = False
) -> float:
    """Return the mean over the labels of the loss of one label, written out, over the rows that know it.

    The loss that is trained counts labels alike, as far as their shares of positives are concerned.
    """
    weights, biases, own = np.split(x, [L * FEATURES, L * FEATURES + L])
    own = own.reshape(-1, L)  # a and b of each label, where there are such
    total = 0.0
    for place, row in enumerate(weights.reshape(L, FEATURES)):
        known = labels[:, place] >= 0
        if not known.any():
            continue
        seen, truth = inputs[known], labels[known, place]
        if variant["name"] == "auprc":
            total += losses.double_loop(losses.sigmoid(seen @ row + biases[place]), truth, 1.0)
        else:
            one = {**variant, "prior": PRIORS[place]}
            vector = np.concatenate([row, [biases[place]], own[:, place]])
            scale = losses.trained(one) if trained else 1.0
            total += scale * losses.value(one, vector, y[place : place + 1], seen, truth)
    return total / L


@variants
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_value_and_gradients_are_the_mean_of_the_labels(variant: dict[str, Any], seed: int) -> None:
    problem = build(variant)
    x, y = point(problem, seed)
    dual = np.zeros(0) if y is None else y.numpy()
    inputs, labels = batch(seed)
    held = inputs.numpy(), labels.numpy()
    gx, gy = problem.gradient(x, y, (inputs, labels))
    loss = problem.metrics(x, y, samples(inputs, labels))["loss"]
    assert loss == pytest.approx(value(variant, x.numpy(), dual, *held), rel=1e-9)
    slopes = losses.finite_differences(lambda v: value(variant, v, dual, *held, True), x.numpy())
    np.testing.assert_allclose(gx.numpy(), slopes, rtol=1e-5, atol=1e-8)
    if y is not None:
        slopes = losses.finite_differences(lambda v: value(variant, x.numpy(), v, *held, True), dual)
        np.testing.assert_allclose(gy.numpy(), slopes, rtol=1e-5, atol=1e-8)


@variants
def test_a_label_that_nobody_knows_moves_nothing_of_it(variant: dict[str, Any]) -> None:
    """Neither its row of the last layer, nor its a, b and α; what is moved of the others is not zero."""
    problem = build(variant)
    x, y = point(problem, 0)
    inputs, labels = batch(0)
    labels[:, 1] = UNKNOWN
    gx, gy = problem.gradient(x, y, (inputs, labels))
    weights, biases, own = gx.split([L * FEATURES, L, len(gx) - L * FEATURES - L])
    parts = [weights.view(L, -1), biases.view(L, 1), own.view(-1, L).T, *([] if gy is None else [gy[:, None]])]
    for part in parts:
        assert (part[1] == 0).all()
    assert all(part[0].abs().max() > 0 for part in parts if part.shape[1])
    labels[:] = UNKNOWN
    gx, gy = problem.gradient(x, y, (inputs, labels))
    assert not gx.any()
    assert gy is None or not gy.any()


@variants
def test_what_is_unknown_in_a_row_changes_nothing_for_the_other_labels(variant: dict[str, Any]) -> None:
    problem = build(variant)
    x, y = point(problem, 3)
    inputs, labels = batch(3, unknown=0)
    before = problem.gradient(x, y, (inputs, labels))[0][: L * FEATURES].view(L, -1)
    labels[4:, 2] = UNKNOWN
    after = problem.gradient(x, y, (inputs, labels))[0][: L * FEATURES].view(L, -1)
    assert torch.equal(before[:2], after[:2])
    assert not torch.equal(before[2], after[2])


@variants
def test_weights_of_a_sampler_count_in_every_label(variant: dict[str, Any]) -> None:
    """A sample of weight two counts as if it were there twice, at the cost of one of weight zero."""
    problem = build(variant)
    x, y = point(problem, 1)
    inputs, labels = batch(5, rows=8, unknown=0)
    weights = torch.tensor([2.0, 0.0] + [1.0] * 6, dtype=torch.float64)
    if variant["name"] == "auprc":  # weights are of the inner samples; who is an outer one is the batch's
        labels[:2] = 0
    twice = torch.tensor([0, 0, *range(2, 8)])
    weighted = problem.gradient(x, y, (inputs, labels, weights))[0]
    torch.testing.assert_close(weighted, problem.gradient(x, y, (inputs[twice], labels[twice]))[0])


@pytest.mark.parametrize("name", ["bce", "auc"])
def test_a_label_that_is_known_of_few_is_weighted_among_these(name: str) -> None:
    """Of two kinds of samples, weighted otherwise, the label's loss is the weighted mean of those that know it."""
    problem = build({"name": name})
    x, y = point(problem, 2)
    inputs, labels = batch(6, rows=12, unknown=0)
    weights = torch.tensor([3.0] * 4 + [0.0] * 8, dtype=torch.float64)
    labels[2:8, 0] = UNKNOWN  # two of the first kind know it
    labels[:, 1:] = UNKNOWN
    labels[:2, 0] = torch.tensor([0, 1])
    found = problem.gradient(x, y, (inputs, labels, weights))
    expected = problem.gradient(x, y, (inputs[:2], labels[:2]))
    torch.testing.assert_close(found[0], expected[0])
    assert y is None or torch.allclose(found[1], expected[1])


def test_metrics_are_those_of_each_label_and_their_mean() -> None:
    problem = build({"name": "bce"})
    x, _ = point(problem, 0)
    inputs, labels = batch(4, rows=40)
    labels[:, 1] = torch.where(labels[:, 1] == 1, 0, labels[:, 1])  # of one class: no ranking
    found = problem.metrics(x, None, samples(inputs, labels))
    means = []
    for place, name in enumerate(LABELS):
        known = labels[:, place] >= 0
        weights, biases = x[: L * FEATURES].view(L, -1), x[L * FEATURES :]
        single = make("bce")
        own = torch.cat([weights[place], biases[place : place + 1]])
        expected = single.metrics(own, None, samples(inputs[known], labels[known, place]))
        expected.pop("loss")
        for metric, number in expected.items():
            assert found[f"{metric}.{name}"] == pytest.approx(number, nan_ok=True), (metric, name)
        means.append(expected["auroc"])
    assert np.isnan(means[1])
    assert found["auroc"] == pytest.approx((means[0] + means[2]) / 2)
    assert found["n"] == 40


@pytest.mark.parametrize("weighting", [(1.0, 1.0, 1.0), (12.0, 20.0, 9.0)])
@pytest.mark.parametrize("name", ["auc", "auc-margin"])
def test_codas_dual_of_each_label_is_the_best_for_the_sites_that_know_it(name: str, weighting: Any) -> None:
    """Its mean gradient over these is zero, with a prior that is theirs; a label that no site knows keeps its dual."""
    sites = [batch(seed, rows) for seed, rows in enumerate((12, 20, 9))]
    sites[1][1][:, 1] = UNKNOWN
    for _, labels in sites:
        labels[:, 2] = UNKNOWN
    known = [[k for k in range(3) if (sites[k][1][:, place] >= 0).any()] for place in range(2)]
    columns = [[sites[k][1][:, place].numpy() for k in known[place]] for place in range(2)]
    shares = [[(own == 1).sum() / (own >= 0).sum() for own in column] for column in columns]
    priors = [float(np.average(own, weights=[weighting[k] for k in of])) for own, of in zip(shares, known, strict=True)]
    problem = make(name, score="identity", labels=LABELS, priors=(*priors, 0.5))
    x, _ = point(problem, 0)
    replies = []
    for k, data in enumerate(sites):
        numerators, denominators = problem.dual_terms(x, data)
        arrays = {"numerators": numerators, "denominators": denominators}
        replies.append(Reply(Site(k, f"site-{k}", k, weighting[k]), arrays))
    strategy = Coda(local_steps=1)
    y = strategy.aggregate(
        {"x": x, "y": torch.full((L,), 7.0).double()}, iter(replies), strategy.context(1, 1, "dual", 3)
    )
    slopes = torch.stack([problem.gradient(x, y["y"], data)[1] for data in sites])
    for place in range(2):
        own = [slopes[k, place].item() for k in known[place]]
        assert np.average(own, weights=[weighting[k] for k in known[place]]) == pytest.approx(0, abs=1e-12)
    assert y["y"][2] == 7


def test_fixed_positives_are_those_of_any_label_and_are_weighted_back() -> None:
    labels = torch.tensor([[1, 0, UNKNOWN], [0, 0, 0], [0, UNKNOWN, 1]] + [[0, 0, UNKNOWN]] * 17)
    sampler = make_sampler("fixed-positives", labels, 4, 2, torch.Generator().manual_seed(0))
    drawn = sampler.draw()
    assert sorted(drawn.tolist())[:2] == [0, 2] or {0, 2} <= set(drawn.tolist())
    weights = sampler.weights(labels[drawn])
    assert weights is not None
    positive = (labels[drawn] == 1).any(1)
    assert weights[positive].sum() / weights.sum() == pytest.approx(2 / 20)


def test_which_problems_take_several_labels() -> None:
    ranking, entropies = {"auc", "auc-margin", "auprc"}, {"bce", "bce-weighted", "bce-adjusted", "bce-focal"}
    assert {name for name, problem in PROBLEMS.items() if problem.several} == ranking | entropies


@variants
def test_what_a_file_says_of_the_scalars_gives_them_back(variant: dict[str, Any]) -> None:
    problem = build(variant)
    x, y = point(problem, 2)
    named = problem.scalars_of(x, y)
    assert all(len(entries) == L for entries in named.values())
    back, dual = restore_scalars(problem, x[: problem.network.size], named)
    assert torch.equal(back, x)
    assert y is None or torch.equal(dual, y)
