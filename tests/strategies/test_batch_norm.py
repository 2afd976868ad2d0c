"""Batch-norm statistics are no part of x, and no business of an algorithm: ``bn`` means the same for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from torch import nn

from edelweiss.client_app.process_cache import cached_problem
from edelweiss.common import Value
from edelweiss.federation import unpack
from edelweiss.models import networks
from edelweiss.problems import PROBLEMS
from edelweiss.server_app import Result, simulate
from edelweiss.server_app.local import LocalGrid
from edelweiss.strategies import ALGORITHMS, can_solve

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
    monkeypatch.setitem(networks.MODELS, "linear", linear_on_normalised)
    cached_problem.cache_clear()  # of networks that were built as usual
    yield
    cached_problem.cache_clear()


def job_of(folder: Path, algorithm: str, bn: str) -> dict[str, Value]:
    """Two rounds on unscaled features; with half of the sites in each where the algorithm can do with them."""
    keys: dict[str, Value] = {"algorithm": algorithm, "problem": SOLVED[algorithm], "model": "linear", "bn": bn}
    keys |= {"sites": 4, "rounds": 2}
    keys |= {"local-steps": 1 if algorithm == "npa" else 2, "batch-size": 8, "partition": "iid", "device": "cpu"}
    keys |= {"standardise": False, "central-test": False, "evaluate-every": 0, "loss-bound": 1e30}
    keys |= {"fraction": 0.5 if ALGORITHMS[algorithm].partial else 1.0, "runs-dir": str(folder)}
    return keys


def run(folder: Path, algorithm: str, bn: str, workers: int = 1) -> Result:
    return simulate(job_of(folder, algorithm, bn) | {"workers": workers})


# Plain averages, closed forms, phases, control variates, estimators, inner values, those who come first: the loop
# averages the statistics for all alike.
KINDS = ("fedavg", "coda", "fednest", "codasca", "fmgda", "fcsg-m", "cdma")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", KINDS)
def test_they_are_averaged_or_stay_at_the_sites(algorithm: str, tmp_path: Path) -> None:
    start = np.repeat([0.0, 1.0], 30)  # means and variances of 30 features
    averaged = run(tmp_path, algorithm, "average")
    assert not np.isclose(averaged.arrays["buffers"], start).any()
    local = run(tmp_path, algorithm, "local")
    # The coordinator has those that all began with: what a site starts from that is new, or has lost its memory.
    np.testing.assert_array_equal(local.arrays["buffers"], start)


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[RecordDict]:
    """Note what the sites answer."""
    pull, contents = LocalGrid.pull_messages, list[RecordDict]()

    def noting(grid: LocalGrid, identifiers: Iterable[str]) -> Iterable[Message]:
        answers = list(pull(grid, identifiers))
        contents.extend(answer.content for answer in answers)
        return answers

    monkeypatch.setattr(LocalGrid, "pull_messages", noting)
    return contents


def test_their_average_has_the_weights_of_the_models(tmp_path: Path, replies: list[RecordDict]) -> None:
    """Sites of very different sizes: the statistics that a run returns are the mean by samples, as x is."""
    keys: dict[str, Value] = {"weighting": "examples", "partition": "dirichlet", "rounds": 1, "fraction": 1.0}
    keys["workers"] = 1
    averaged = simulate({**job_of(tmp_path, "fedavg", "average"), **keys})
    weights = [content["facts"]["examples"] for content in replies if "facts" in content.config_records]
    sent = [unpack(content["arrays"]) for content in replies if "arrays" in content.array_records]
    assert max(weights) > 2 * min(weights)
    for name in ("x", "buffers"):
        expected = np.average([arrays[name].numpy() for arrays in sent], axis=0, weights=weights)
        np.testing.assert_allclose(averaged.arrays[name], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "codasca", "cdma"])
def test_at_the_sites_they_are_those_of_no_site_in_the_same_process(algorithm: str, tmp_path: Path) -> None:
    local, two = (run(tmp_path, algorithm, "local", workers) for workers in (1, 2))
    np.testing.assert_array_equal(two.arrays["x"], local.arrays["x"])
    assert two.metrics[-1]["sites"] == local.metrics[-1]["sites"]


def test_they_are_sent_where_training_has_moved_them_and_only_there(tmp_path: Path, replies: list[RecordDict]) -> None:
    """The phase in which CODA takes sums for its dual is a prediction."""
    simulate(job_of(tmp_path, "coda", "average") | {"workers": 1})
    answers = [content for content in replies if "arrays" in content.array_records]
    moved = [float(str(content["cost"]["gradients"])) > 0 for content in answers]
    assert {*moved} == {True, False}
    assert ["buffers" in content["arrays"] for content in answers] == moved


@pytest.mark.parametrize("bn", ["average", "local"])
def test_the_common_test_set_is_for_a_model_with_common_statistics(bn: str, tmp_path: Path) -> None:
    """Where they stay at the sites the coordinator has only those that all began with."""
    result = simulate(job_of(tmp_path, "fedavg", bn) | {"workers": 1, "central-test": True})
    assert ("central" in result.metrics[-1]) == (bn == "average")
