"""Personalised and decentralised methods: where the head begins, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.config import ConfigError, RunConfig
from edelweiss.federation import StrategyError
from edelweiss.models import ModelError
from edelweiss.server_app import simulate
from tests.problems.example import make
from tests.reference import personalised as reference
from tests.said import has
from tests.strategies.personalised import run

# ---------------------------------------------------------------------- the head


def test_where_the_head_begins() -> None:
    d = 30 * 4 + 4 + 4 * 4 + 4 + 4 + 1
    for head, start in [("", d - 5), ("head", d - 5), ("body.3", d - 5 - 20), ("body.1", 0), ("body", 0)]:
        problem = make("auc", model="mlp", hidden=4, shape=(30,), head=head, dtype=torch.float32)
        assert problem.head == start
        fresh = problem.fresh()
        assert torch.equal(fresh["head"], problem.initial()["x"][start:]), "a, b behind the last layer belong to it"
        assert len(fresh["head"]) == d + 2 - start
        problem.gradient(torch.zeros(d + 2), torch.zeros(1), (torch.ones(2, 30), torch.tensor([0, 1])))
        assert torch.equal(problem.fresh()["head"], fresh["head"]), "whatever the network is bound to"


def test_a_head_that_does_not_exist_is_refused_with_the_models_layers(tmp_path: Path) -> None:
    with pytest.raises(ModelError, check=has("'hed'", "body.1", "body.3", key="head")):
        simulate({"algorithm": "deprl", "head": "hed", "rounds": 1, "workers": 1, "runs-dir": str(tmp_path)})


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("deprl", {"model": "linear"}),
        ("deprl", {"head": "body"}),
        ("fedrep", {"model": "linear"}),
        ("fedrep", {"head": "body"}),
        ("fedrod", {"model": "linear", "problem": "cross-entropy"}),
    ],
    ids=str,
)
def test_a_model_without_a_body_has_no_separable_head(algorithm: str, keys: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StrategyError, check=has(key="head", value=algorithm)):
        simulate({"algorithm": algorithm, **keys, "rounds": 1, "workers": 1, "runs-dir": str(tmp_path)})


def test_problems_without_a_network_are_refused() -> None:
    for algorithm in ("deprl", "fedrep", "dispfl"):
        with pytest.raises(ConfigError, check=has(f"'{algorithm}'", "problem = 'saddle'")):
            RunConfig.parse({"algorithm": algorithm, "problem": "saddle"})


# ---------------------------------------------------------------------- other bad input

PERSONALISED = ["d-psgd", "deprl", "dispfl", "fedrep", "ditto", "fedrod"]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"dispfl.density": 0.0, "algorithm": "dispfl"}, ["dispfl.density = 0.0", "> 0 and <= 1"]),
        ({"dispfl.density": 1.5, "algorithm": "dispfl"}, ["dispfl.density = 1.5", "> 0 and <= 1"]),
        ({"deprl.topology": "line"}, ["deprl.topology = 'line'", "'ring', 'random', 'full', 'star', 'file'"]),
        ({"deprl.topology": "file"}, ["deprl.topology = 'file'", "deprl.graph-file = ''"]),
        ({"deprl.graph-file": "g.csv"}, ["deprl.topology = 'ring'", "deprl.graph-file = 'g.csv'"]),
        ({"deprl.graph-file": "g.txt"}, ["deprl.graph-file = 'g.txt'", ".toml", ".csv"]),
        ({"deprl.regraph": "every-round"}, ["deprl.regraph = 'every-round'", "deprl.topology = 'ring'"]),
        ({"deprl.momentum": 1.0}, ["deprl.momentum = 1.0", ">= 0 and < 1"]),
        ({"deprl.head-unit": "passes"}, ["deprl.head-unit = 'passes'", "'steps', 'epochs'"]),
        ({"deprl.first-head": "mine"}, ["deprl.first-head = 'mine'", "'own', 'common'"]),
        ({"weighting": "examples"}, ["weighting = 'examples'", "deprl"]),
        ({"head": "body.3", "algorithm": "fedrod", "problem": "cross-entropy"}, ["head = 'body.3'"]),
    ],
)
def test_what_does_not_go_together_is_refused(keys: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ConfigError, check=has(*named)):
        RunConfig.parse({"algorithm": "deprl", **keys})


@pytest.mark.parametrize("algorithm", PERSONALISED)
def test_batch_norm_statistics_stay_at_the_sites_and_only_the_last_model_is_there(algorithm: str) -> None:
    keys = {"algorithm": algorithm, "problem": "cross-entropy", "dataset": "mnist"}
    for model in ("resnet18", "efficientnet-b0"):
        with pytest.raises(ConfigError, check=has("bn = 'average'", f"'{model}'", 'bn = "local"')):
            RunConfig.parse(keys | {"model": model})
    RunConfig.parse(keys | {"model": "resnet18", "bn": "local"})
    RunConfig.parse(keys | {"model": "lenet5"})
    with pytest.raises(ConfigError, check=has("output = 'average'", '"last"')):
        RunConfig.parse(keys | {"output": "average"})


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("0,1\n2,3\n", "deprl.graph-file", [[0, 1], [2, 3]]),
        ("0,1\n1,5\n", "deprl.graph-file", [5]),
        ("", "deprl.mean-degree", 1),
    ],
)
def test_a_graph_that_does_not_fit_ends_the_run_before_anything_is_sent(
    text: str, key: str, value: object, tmp_path: Path
) -> None:
    (tmp_path / "graph.csv").write_text(text, encoding="utf-8")
    keys = {"own_topology": "file", "own_graph_file": str(tmp_path / "graph.csv")}
    with pytest.raises(StrategyError, check=has(key, key=key, value=value)):
        run(tmp_path, "deprl", **(keys if text else {"own_topology": "random", "own_mean_degree": 1.0}))
    assert not list((tmp_path / "runs").rglob("metrics.jsonl"))


@pytest.mark.slow
def test_a_file_of_edges_that_changed_is_read_anew(tmp_path: Path) -> None:
    """By the next run in the same process."""
    keys = {"own_topology": "file", "own_graph_file": str(tmp_path / "graph.csv"), "rounds": 1}
    gaps = []
    for text in ("0,1\n1,2\n2,3\n3,0\n", "0,1\n1,2\n2,3\n"):
        (tmp_path / "graph.csv").write_text(text, encoding="utf-8")
        gaps.append(run(tmp_path, "d-psgd", **keys)[1].metrics[-1]["spectral-gap"])
    assert gaps == pytest.approx(
        [2 / 3, 1 - np.sort(np.linalg.eigvalsh(reference.metropolis({(0, 1), (1, 2), (2, 3)}, 4)))[-2]]
    )
