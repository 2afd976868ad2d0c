"""Which share of positives an objective sees: p is what the average over the sites sees, whatever a batch holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.config import RunConfig
from edelweiss.datasets import Facts, make_sampler
from edelweiss.federation import Reply, Site
from edelweiss.problems import PROBLEMS
from edelweiss.problems.base import Batch
from edelweiss.problems.network import NetworkProblem
from edelweiss.server_app.console import Progress
from edelweiss.server_app.data_summary import assign_places, pooled
from edelweiss.strategies.coda import Coda
from tests.problems.example import BINARY_MINIMAX, batch, changed_by_a_constant, make, opened, point

# (positives, negatives) of each site: of different sizes and mixes.
SITES = [(3, 9), (6, 2), (1, 19)]
WEIGHTS = {"uniform": [1.0] * 3, "examples": [12.0, 8.0, 20.0]}
BINARY = [*BINARY_MINIMAX, "bce", "auprc"]


def mean_share(weights: list[float]) -> float:
    """Return Σ w_k p_k / Σ w_k."""
    return sum(w * a / (a + b) for w, (a, b) in zip(weights, SITES, strict=True)) / sum(weights)


def site_data() -> list[Batch]:
    return [batch(k, *counts) for k, counts in enumerate(SITES)]


def value(problem: NetworkProblem, weights: list[float], shift: float, dual: float) -> float:
    """Return the mean objective of the sites at y, with ``shift`` added to all scores, and to a and b."""
    x, _ = point(problem, 0)
    scalars, y = x[problem.network.size :] + shift, torch.tensor([dual], dtype=x.dtype)
    problem.network.bind(x)
    losses = [
        problem.loss(problem.outputs(data) + shift, problem.cast_labels(labels), scalars, y).item()
        for data, labels in site_data()
    ]
    return float(np.average(losses, weights=weights))


@pytest.mark.parametrize("weighting", WEIGHTS)
@pytest.mark.parametrize("name", BINARY_MINIMAX)
def test_a_constant_added_to_all_scores_changes_nothing_if_p_is_what_the_average_sees(
    name: str, weighting: str
) -> None:
    weights = WEIGHTS[weighting]
    right = make(name, score="identity", prior=mean_share(weights))
    assert value(right, weights, 3.0, 0.7) == pytest.approx(value(right, weights, 0.0, 0.7), abs=1e-12)
    (other,) = (own for key, own in WEIGHTS.items() if key != weighting)
    wrong = make(name, score="identity", prior=mean_share(other))
    assert abs(value(wrong, weights, 3.0, 0.7) - value(wrong, weights, 0.0, 0.7)) > 0.1


# ---------------------------------------------------------------------- a site that has a, b and α for itself


@pytest.mark.parametrize("name", BINARY_MINIMAX)
@pytest.mark.parametrize("labels", [(), ("one", "two", "three")])
def test_the_objective_of_a_site_does_not_see_a_constant(name: str, labels: tuple[str, ...]) -> None:
    common = make(name, score="identity", prior=0.6, labels=labels, priors=(0.6,) * len(labels))
    for k, (inputs, truth) in enumerate(site_data()):
        if labels:  # the second is known of some, the third has one class
            truth = torch.stack([truth, truth.where(torch.arange(len(truth)) > 2, -1), torch.ones_like(truth)], dim=1)
        assert changed_by_a_constant(common.of_site(truth), (inputs, truth)) < 1e-12
        assert changed_by_a_constant(common, (inputs, truth)) > 0.1, f"site {k}"


@pytest.mark.parametrize("name", BINARY_MINIMAX)
def test_an_option_says_what_p_is_at_all_sites(name: str) -> None:
    problem = PROBLEMS[name](make(name).setting, prior=0.2)
    assert problem.of_site(torch.tensor([0, 1])) is problem


@pytest.mark.parametrize("name", BINARY_MINIMAX)
@pytest.mark.parametrize("kind", [0, 1])
def test_with_one_class_nothing_moves(name: str, kind: int) -> None:
    labels = torch.full((5,), kind)
    problem = make(name).of_site(labels)
    assert all(not gradient.any() for gradient in problem.gradient(*point(problem, 0), (batch(0, 2, 3)[0], labels)))


@pytest.mark.parametrize("name", BINARY_MINIMAX)
def test_a_label_of_one_class_or_of_none_moves_nothing_of_itself(name: str) -> None:
    problem = make(name, labels=("both", "one", "none"), priors=(0.5,) * 3)
    truth = torch.tensor([[0, 1, -1], [1, 1, -1], [1, -1, -1]])
    gx, gy = problem.of_site(truth).gradient(*point(problem, 0), (batch(0, 2, 1)[0], truth))
    assert gy.ne(0).tolist() == [True, False, False]
    assert gx[-6:].ne(0).tolist() == [True, False, False] * 2
    assert gx.isfinite().all()


@pytest.mark.parametrize("weighting", WEIGHTS)
@pytest.mark.parametrize("name", BINARY_MINIMAX)
def test_codas_dual_is_the_best_for_the_mean_objective(name: str, weighting: str) -> None:
    """The mean gradient by y is zero there, with the weights of the sites."""
    weights = WEIGHTS[weighting]
    problem = make(name, score="identity", prior=mean_share(weights))
    x, _ = point(problem, 0)
    replies = []
    for k, (data, weight) in enumerate(zip(site_data(), weights, strict=True)):
        sums, counts = problem.dual_terms(x, data)
        replies.append(Reply(Site(k, f"site-{k}", k, weight), {"numerators": sums, "denominators": counts}))
    strategy = Coda(local_steps=1)
    y = strategy.aggregate({"x": x, "y": x.new_zeros(1)}, iter(replies), strategy.context(1, 1, "dual", 3))["y"]
    slopes = [problem.gradient(x, y, data)[1].item() for data in site_data()]
    assert np.average(slopes, weights=weights) == pytest.approx(0, abs=1e-12)
    assert max(map(abs, slopes)) > 1e-3, "the sites disagree"


@pytest.mark.parametrize(("weighting", "expected"), [("uniform", (0.25 + 0.75) / 2), ("examples", 5 / 12)])
def test_a_run_takes_p_from_the_counts_of_its_sites_as_they_are_weighted(weighting: str, expected: float) -> None:
    config = RunConfig.parse({"problem": "auc", "dataset": "site", "weighting": weighting, "standardise": False})
    told = {
        7: Facts(name="a", examples=8, positives=2, shape=(3,)),
        8: Facts(name="b", examples=4, positives=3, shape=(3,)),
    }
    assert pooled(config, assign_places(config, told), Progress(quiet=True)).prior == pytest.approx(expected)


# ---------------------------------------------------------------------- batches with other shares

POSITIVES, NEGATIVES, QUOTA, BATCH = 6, 30, 3, 6
EPOCH = 10  # batches: all negatives once, each positive five times


def batches(problem: NetworkProblem) -> list[Batch]:
    """Return the batches of one pass over the negatives, as the oracle of a client draws them."""
    inputs, labels = batch(4, POSITIVES, NEGATIVES)
    keys = {"sampler": "fixed-positives", "batch-size": BATCH, "positives-per-batch": QUOTA}
    oracle = opened(problem, inputs.float(), labels, **keys)
    drawn = [oracle.draw() for _ in range(EPOCH)]
    return [(data[0].double(), *data[1:]) for data in drawn if data is not None]


@pytest.mark.parametrize("name", ["auc", "auc-margin", "bce"])
def test_batches_with_more_positives_than_the_data_have_the_gradient_of_the_data_on_average(name: str) -> None:
    problem = make(name, prior=0.3)
    x, y = point(problem, 1)
    inputs, labels = batch(4, POSITIVES, NEGATIVES)
    whole = problem.gradient(x, y, (inputs.float().double(), labels))
    drawn = batches(problem)
    assert all(data[1].sum() == QUOTA for data in drawn)
    for place, exact in enumerate(whole):
        if exact is not None:
            mean = torch.stack([problem.gradient(x, y, data)[place] for data in drawn]).mean(0)
            torch.testing.assert_close(mean, exact, rtol=0, atol=1e-12)
    unweighted = torch.stack([problem.gradient(x, y, data[:2])[0] for data in drawn]).mean(0)
    assert (unweighted - whole[0]).abs().max() > 0.01


def test_the_inner_means_of_auprc_are_those_of_the_data_on_average() -> None:
    """Here for a score of 0.4, which none of the samples has, so that nobody is compared with itself."""
    problem = make("auprc")
    x, _ = point(problem, 1)
    problem.network.bind(x)
    inputs, labels = batch(4, POSITIVES, NEGATIVES)

    def means(inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        mass = weights * (1 - 0.4 + torch.sigmoid(problem.outputs(inputs))).relu().square()
        return torch.stack([(mass * labels).mean(), mass.mean()])

    drawn = torch.stack([means(*data) for data in batches(problem)])
    exact = means(inputs.float().double(), labels, torch.ones(len(labels)))
    torch.testing.assert_close(drawn.mean(0), exact, rtol=0, atol=1e-12)
    assert (drawn - exact).abs().max() > 1e-3, "batches differ"


@pytest.mark.parametrize("name", BINARY)
def test_weights_count_samples_as_often_as_they_say(name: str) -> None:
    """Whole weights are the same as samples given so many times, up to the mean of 1 that they have."""
    problem = make(name, prior=0.3)
    x, y = point(problem, 2)
    inputs, labels = batch(7, 3, 5)
    times = torch.where(labels == 1, 1, 4)
    weights = times.double() * len(times) / times.sum()
    repeated = inputs.repeat_interleave(times, 0), labels.repeat_interleave(times)
    weighted = problem.gradient(x, y, (inputs, labels, weights))
    for one, other in zip(weighted, problem.gradient(x, y, repeated), strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_uniform_sampler_has_no_weights_and_the_other_gives_each_class_its_own_share() -> None:
    labels = torch.tensor([1] * POSITIVES + [0] * NEGATIVES)
    uniform, fixed = (
        make_sampler(name, labels, BATCH, QUOTA, torch.Generator()) for name in ("uniform", "fixed-positives")
    )
    drawn = labels[fixed.draw()]
    weights = fixed.weights(drawn)
    assert uniform.weights(drawn) is None
    assert weights is not None
    assert weights.sum().item() == pytest.approx(BATCH)
    assert weights[drawn == 1].sum().item() / BATCH == pytest.approx(POSITIVES / (POSITIVES + NEGATIVES))
