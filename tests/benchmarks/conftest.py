"""A small study, on data that need no download."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.studies import Study, method
from benchmarks.sweep import Sweep

TOML = """
dataset = "digits"
partition = "iid"
sites = 2
rounds = 4
local-steps = 2
evaluate-every = 1
hidden = 4

[local-sgda]
lr = 0.5
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Two methods, two step sizes, two seeds."""
    (tmp_path / "small.toml").write_text(TOML, encoding="utf-8")
    return Study(
        name="small",
        title="Small, q = 2 and 4",
        experiment=tmp_path / "small.toml",
        methods=(method("fedavg", 0.1, 0.01, settings={"problem": "bce"}), method("codasca", 0.1, 0.01)),
        report={"central.auroc": "AUROC"},
        compare={"local-steps": (2, 4)},
        repeat={"seed": (0, 1)},
        size="Nothing is reduced.",
        note="There are 2 sites.",
        reference="fedavg",
        extend=0,
    )


@pytest.fixture
def sweep(study: Study, tmp_path: Path) -> Sweep:
    return Sweep(study, tmp_path / "runs")
