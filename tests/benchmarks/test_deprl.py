"""The experiments of DePRL hold for each of the paper's graphs and class mixes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import REPO
from edelweiss.config import RunConfig, read_overrides
from edelweiss.datasets.sources.harbox import ACTIVITIES, FEATURES
from edelweiss.server_app import simulate
from edelweiss.strategies.deprl import DePRL

PAPER = {"cifar10": 16, "cifar100": 128, "fashion-mnist": 16, "harbox": 16}  # its data and their batches


@pytest.mark.parametrize(("name", "sites"), [("mnist", 32), ("mnist-128", 128), *dict.fromkeys(PAPER, 128).items()])
@pytest.mark.parametrize("topology", ["ring", "random", "full"])
@pytest.mark.parametrize("concentration", [0.1, 0.3, 0.5])
def test_graphs_and_mixes_are_chosen_as_the_file_says(
    name: str, sites: int, topology: str, concentration: float
) -> None:
    file = REPO / "experiments" / "deprl" / f"{name}.toml"
    changes = f'deprl.topology="{topology}" concentration={concentration}'
    run = RunConfig.parse(read_overrides([str(file), changes]))
    assert (run.sites, run.hyper["topology"], run.concentration) == (sites, topology, concentration)
    assert run.data().personal_test
    for words in changes.split():
        default = words in ('deprl.topology="ring"', "concentration=0.3")
        assert default or f"'{words}'" in file.read_text(encoding="utf-8"), "the comment names it"


@pytest.mark.parametrize(("name", "batch"), PAPER.items())
def test_what_the_paper_states_is_in_the_files_of_its_data(name: str, batch: int) -> None:
    run = RunConfig.parse(read_overrides([str(REPO / "experiments" / "deprl" / f"{name}.toml")]))
    assert (run.batch_size, run.concentration, run.partition) == (batch, 0.3, "dirichlet")
    method = run.strategy
    assert isinstance(method, DePRL)
    assert (method.lr_head, method.lr_body, method.local_steps, method.body_steps) == (0.005, 0.01, 2, 1)
    assert (method.decay, method.weight_decay) == (0.96, 1e-5)


@pytest.mark.slow
def test_harbox_runs_with_each_person_as_a_worker(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "harbox").mkdir()
    for user in range(3):
        means = random.normal(size=(len(ACTIVITIES), len(FEATURES)))
        windows = [(means[k % 5] + random.normal(size=len(FEATURES)), ACTIVITIES[k % 5]) for k in range(25)]
        lines = [",".join([*map(str, values), activity]) for values, activity in windows]
        (tmp_path / "harbox" / f"user{user}.csv").write_text("\n".join(lines), encoding="utf-8")
    file = REPO / "experiments" / "deprl" / "harbox.toml"
    (said,) = (line for line in file.read_text(encoding="utf-8").splitlines() if 'partition="sites"' in line)
    persons = said.split("'")[1].replace("sites=121", "sites=3")
    changes = f'data-root="{tmp_path}" runs-dir="{tmp_path}" rounds=2 workers=1'
    result = simulate(read_overrides([str(file), persons, changes]))
    assert set(result.metrics[-1]["sites"]) == {"user0", "user1", "user2"}
    layers = [900 * 512 + 512, 512 * 256 + 256, 256 * 128 + 128, 128 * 64 + 64, 64 * 5 + 5]
    assert len(result.arrays["x"]) == sum(layers)
