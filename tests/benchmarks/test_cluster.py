"""What a run-config would take on several devices: counted as runs count it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import Work, row
from edelweiss.config import RunConfig, parse_run_config
from edelweiss.datasets import DataSummary
from edelweiss.problems import Arrays, Problem
from edelweiss.server_app import simulate

SADDLE: dict[str, Any] = {
    "problem": "saddle",
    "saddle.dimension": 10,
    "sites": 6,
    "local-steps": 3,
    "engine": "local",
    "report": False,
}


def game(config: RunConfig) -> tuple[Problem, Arrays]:
    """Return the saddle problem of a run, and where it starts."""
    problem = config.build_problem(config.setting(DataSummary(), "cpu", 0))
    return problem, problem.initial()


STAGES = {"stage-iterations": 6, "stage-growth": 2.0, "stage-decay": 2.0, "stage-steps-growth": 2.0}


@pytest.mark.parametrize(
    "job",
    [
        {"algorithm": "local-sgda", "rounds": 5},
        {"algorithm": "codasca", "rounds": 8, "fraction": 0.5, **STAGES},
        {"algorithm": "fednest", "rounds": 3},
        {"algorithm": "sagda", "rounds": 3},
    ],
)
def test_gradients_and_bytes_are_those_of_the_run(job: dict[str, Any], tmp_path: Path) -> None:
    config = parse_run_config(SADDLE | job)
    work = Work.of(config, *game(config), devices=4)
    lines = simulate(SADDLE | job | {"runs-dir": str(tmp_path)}).metrics
    assert work.gradients == sum(line["gradients"] for line in lines)
    clients = config.strategy.clients_per_round(6)
    assert work.busiest == work.gradients / clients * math.ceil(clients / 4)
    sent = lines[1]["bytes-down"] + lines[1]["bytes-up"]
    assert work.bytes == pytest.approx(sent / clients, rel=0.1), "the second round is in the middle of a stage"


def test_more_devices_take_less_until_each_has_one_site() -> None:
    config = parse_run_config(SADDLE | {"algorithm": "local-sgda", "rounds": 5})
    busiest = [Work.of(config, *game(config), devices).busiest for devices in (1, 2, 4, 6, 8)]
    assert busiest == [90, 45, 30, 15, 15]


@pytest.mark.parametrize(
    "job",
    [
        {"problem": "auc", "dataset": "cifar10", "model": "cnn-cifar", "algorithm": "codasca"},
        {"problem": "bce", "dataset": "breast-cancer", "model": "mlp", "algorithm": "fedavg"},
        {"problem": "maml", "dataset": "omniglot", "model": "mlp", "algorithm": "fcsg", "partition": "by-group"},
        {"problem": "saddle", "algorithm": "cdma"},
    ],
)
def test_a_line_says_the_network_and_what_a_gradient_took(job: dict[str, Any]) -> None:
    config = parse_run_config({"engine": "local", "sites": 4, "rounds": 2, "batch-size": 4} | job)
    cells = row(Path("experiments/some/job.toml"), config, 2).strip("| ").split(" | ")
    assert cells[:2] == ["some/job", job.get("model", "none")]
    assert float(cells[4]) > 0
