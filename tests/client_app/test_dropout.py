"""Dropout at a site: its masks follow from seed, site and round, whoever computes them and whatever came before."""

from __future__ import annotations

import itertools
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary, load_site
from edelweiss.models import Architecture
from edelweiss.problems import Problem, Setting
from edelweiss.problems.cross_entropy import CrossEntropy
from edelweiss.server_app import simulate


def problem(model: str = "dnn") -> Problem:
    data_summary = DataSummary(shape=(1, 8, 8), classes=10)
    return CrossEntropy(Setting(data_summary=data_summary, architecture=Architecture(model=model)))


SHARED = lru_cache(problem)


def opened(place: tuple[int, int, int, int] = (0, 1, 1, 0), model: str = "dnn") -> SiteOracle:
    keys: dict[str, object] = {"problem": "cross-entropy", "algorithm": "fedavg", "dataset": "digits", "batch-size": 8}
    config = RunConfig.parse(keys)  # type: ignore[arg-type]
    return SiteOracle.open(config, SHARED(model), load_site(config.data(), 1, 3).train, stream(*place))


def gradients(oracle: SiteOracle, steps: int = 3) -> list[Tensor]:
    """Return gradients at the start on batches that the oracle draws."""
    x = oracle.problem.initial()["x"]
    return [oracle.gradient(x)[0] for _ in range(steps)]


def test_seed_site_and_round_decide_and_nothing_else() -> None:
    first = gradients(opened())
    torch.manual_seed(99)
    gradients(opened((5, 0, 2, 0)), 7)  # another site has used the network of this process
    again = opened()
    assert all(map(torch.equal, gradients(again), first))


def test_interleaved_sites_do_not_disturb_each_other() -> None:
    alone = gradients(opened())
    one, other = opened(), opened((0, 2, 1, 0))
    x = one.problem.initial()["x"]
    mixed = [(one.gradient(x)[0], other.gradient(x))[0] for _ in range(3)]
    assert all(map(torch.equal, mixed, alone))


def test_every_place_has_masks_of_its_own() -> None:
    batch = opened().draw()
    x = SHARED("dnn").initial()["x"]
    places = [(0, 1, 1, 0), (1, 1, 1, 0), (0, 2, 1, 0), (0, 1, 2, 0), (0, 1, 1, 1)]
    found = [opened(place).gradient(x, None, batch)[0] for place in places]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))


def test_a_batch_has_one_mask_and_the_next_another() -> None:
    """What differs between two gradients on one batch is the point alone, as variance-reduced estimators need it."""
    oracle = opened()
    x, batch = oracle.problem.initial()["x"], oracle.draw()
    assert batch is not None
    first, second = (oracle.gradient(x, None, batch)[0] for _ in range(2))
    assert torch.equal(first, second)
    same = batch[0].clone(), batch[1].clone()
    assert not torch.equal(oracle.gradient(x, None, same)[0], first), "equal samples, drawn again"


def test_dropout_changes_no_batch() -> None:
    batches = []
    for model in ("dnn", "mlp"):
        oracle = opened(model=model)
        x = oracle.problem.initial()["x"]
        for _ in range(4):  # more than an epoch, after which the samples are shuffled anew
            batch = oracle.draw(200)
            oracle.gradient(x, None, batch)
            assert batch is not None
            batches.append(batch[0])
    assert all(map(torch.equal, batches[:4], batches[4:]))


def test_one_worker_and_two_give_the_same_bits(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"problem": "cross-entropy", "algorithm": "fedavg", "dataset": "digits", "model": "dnn"}
    keys |= {"sites": 3, "rounds": 2, "local-steps": 2, "engine": "local", "device": "cpu"}
    results = [simulate(keys | {"workers": n, "runs-dir": str(tmp_path / str(n))}, quiet=True) for n in (1, 2)]
    assert np.array_equal(results[0].arrays["x"], results[1].arrays["x"])
    other = simulate(keys | {"workers": 1, "seed": 1, "runs-dir": str(tmp_path / "seed")}, quiet=True)
    assert not np.array_equal(results[0].arrays["x"], other.arrays["x"])
