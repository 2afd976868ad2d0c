"""The oracle: random streams of a site, batches, gradients."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary, Samples, load_site
from edelweiss.models import Architecture
from edelweiss.problems import Setting
from edelweiss.problems.auc import Auc
from edelweiss.problems.saddle import Saddle


def test_every_stream_is_its_own_and_repeats() -> None:
    keys = list(itertools.product(range(3), range(3), range(1, 4), range(2)))
    draws = {key: tuple(torch.randint(2**40, (4,), generator=stream(*key)).tolist()) for key in keys}
    assert len(set(draws.values())) == len(keys)
    assert all(draws[key] == tuple(torch.randint(2**40, (4,), generator=stream(*key)).tolist()) for key in keys[::7])


def linear_auc(train: Samples) -> Auc:
    data_summary = DataSummary(shape=tuple(train.shape), prior=0.3)
    return Auc(Setting(data_summary=data_summary, architecture=Architecture(model="linear")))


def opened(**keys: object) -> SiteOracle:
    config = RunConfig.parse({"batch-size": 8, **keys})  # type: ignore[arg-type]
    train = load_site(config.data(), 1, 3).train
    return SiteOracle.open(config, linear_auc(train), train, stream(0, 1, 1, 0))


def test_batches_have_the_size_of_the_run_or_the_one_asked_for() -> None:
    oracle = opened()
    for size, wanted in ((None, 8), (3, 3), (8, 8)):
        batch = oracle.draw(size)
        assert batch is not None
        assert len(batch[0]) == len(batch[1]) == wanted


@pytest.mark.parametrize(("size", "drawn"), [(8, 0), (8, 3), (1, 0), (7, 1), (1000, 2)])
def test_an_epoch_deals_each_sample_once_in_batches_of_nearly_one_size(size: int, drawn: int) -> None:
    """Whatever was drawn before it, and the next one in another order."""
    oracle, orders = opened(**{"batch-size": size, "sampler": "uniform"}), []
    samples = oracle.samples
    assert samples is not None
    for _ in range(drawn):
        oracle.draw()
    for _ in range(2):
        batches = [batch for batch in oracle.epoch() if batch is not None]
        sizes = {len(labels) for _, labels in batches}
        assert len(batches) == math.ceil(len(samples) / size)
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1
        orders.append(torch.cat([inputs for inputs, _ in batches]))
        everything = samples.batch(torch.arange(len(samples)))[0]
        assert sorted(orders[-1].tolist()) == sorted(everything.tolist())
    assert torch.equal(*orders) == (size == 1000)


def test_the_order_of_an_epoch_is_the_sites_own() -> None:
    def order(*key: int) -> torch.Tensor:
        oracle = opened()
        again = SiteOracle.open(RunConfig.parse({"batch-size": 8}), oracle.problem, oracle.samples, stream(*key))
        return torch.cat([batch[0] for batch in again.epoch() if batch is not None])

    keys = [(0, 1, 1, 0), (1, 1, 1, 0), (0, 2, 1, 0), (0, 1, 2, 0)]
    assert not any(torch.equal(order(*one), order(*other)) for one, other in itertools.combinations(keys, 2))
    assert all(torch.equal(order(*key), order(*key)) for key in keys)


def test_an_epoch_is_dealt_by_the_runs_sampler() -> None:
    oracle = opened(**{"sampler": "fixed-positives", "positives-per-batch": 2, "thin-share": 0.0})
    samples = oracle.samples
    assert samples is not None
    labels = [batch[1] for batch in oracle.epoch() if batch is not None]
    assert sum(map(len, labels)) == len(samples)
    assert all(int(part.sum()) == 2 for part in labels)


def test_a_given_batch_is_used_and_none_is_drawn() -> None:
    oracle, other = opened(), opened()
    start = oracle.problem.initial()
    batch = oracle.draw()
    twice = [oracle.gradient(start["x"], start["y"], batch) for _ in range(2)]
    assert torch.equal(twice[0][0], twice[1][0])
    assert oracle.gradients == 2
    # The other oracle, of the same stream, has drawn once as well: the next batches are the same.
    other.draw()
    fresh, again = oracle.draw(), other.draw()
    assert fresh is not None
    assert again is not None
    assert torch.equal(fresh[0], again[0])


def test_without_a_batch_each_gradient_sees_a_fresh_one() -> None:
    oracle = opened()
    start = oracle.problem.initial()
    first, second = (oracle.gradient(start["x"], start["y"])[0].clone() for _ in range(2))
    assert not torch.equal(first, second)


def test_a_problem_in_closed_form_needs_no_batch() -> None:
    problem = Saddle(Setting(site=0, sites=2))
    oracle = SiteOracle.open(RunConfig.parse({"problem": "saddle"}), problem, None, stream(0, 0, 1, 0))
    start = problem.initial()
    assert oracle.draw() is None
    gx, gy = oracle.gradient(start["x"], start["y"])
    assert gx.shape == start["x"].shape
    assert gy is not None
    assert oracle.gradients == 1
