"""Batch-norm statistics are no part of x, and no business of an algorithm: ``bn`` means the same for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from client_app.site import cached_problem
from models import networks
from problems import PROBLEMS
from server_app import Result, simulate
from strategies import ALGORITHMS, can_solve

SOLVED = {
    name: problem
    for name, algorithm in ALGORITHMS.items()
    for problem in ("auprc", "bce", "auc")
    if can_solve(algorithm, PROBLEMS[problem]) and algorithm.exchanges and not algorithm.own_statistics
}


def linear_on_normalised(name: str, shape: tuple[int, ...], outputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(shape[0], affine=False), nn.Linear(shape[0], outputs))


@pytest.fixture(autouse=True)
def a_small_network_with_statistics(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(networks._BUILDERS, "linear", linear_on_normalised)
    cached_problem.cache_clear()  # of networks that were built as usual
    yield
    cached_problem.cache_clear()


def run(folder: Path, algorithm: str, bn: str, workers: int = 1) -> Result:
    """Two rounds on unscaled features; with half of the sites in each where the algorithm can do with them."""
    keys = {"algorithm": algorithm, "problem": SOLVED[algorithm], "model": "linear", "sites": 4, "rounds": 2, "bn": bn}
    keys |= {"local-steps": 1 if algorithm == "npa" else 2, "batch-size": 8, "partition": "iid", "device": "cpu"}
    keys |= {"standardise": False, "central-test": False, "evaluate-every": 0, "workers": workers, "loss-bound": 1e30}
    keys |= {"fraction": 0.5 if ALGORITHMS[algorithm].partial else 1.0, "runs-dir": str(folder)}
    return simulate(keys)


@pytest.mark.parametrize("algorithm", SOLVED)
def test_they_are_averaged_or_stay_at_the_sites(algorithm: str, tmp_path: Path) -> None:
    start = np.repeat([0.0, 1.0], 30)  # means and variances of 30 features
    averaged = run(tmp_path, algorithm, "average")
    assert not np.isclose(averaged.arrays["buffers"], start).any()
    local = run(tmp_path, algorithm, "local")
    # The coordinator has those that all began with: what a site starts from that is new, or has lost its memory.
    np.testing.assert_array_equal(local.arrays["buffers"], start)


@pytest.mark.parametrize("algorithm", ["fedavg", "codasca", "cdma"])
def test_at_the_sites_they_are_those_of_no_site_in_the_same_process(algorithm: str, tmp_path: Path) -> None:
    local, two = (run(tmp_path, algorithm, "local", workers) for workers in (1, 2))
    np.testing.assert_array_equal(two.arrays["x"], local.arrays["x"])
    assert two.metrics[-1]["sites"] == local.metrics[-1]["sites"]
