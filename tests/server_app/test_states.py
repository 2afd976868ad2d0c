"""What simulated sites remember lies in memory or on a disk, as much as was foreseen, and changes no bit of a run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from edelweiss.config import RunConfig
from edelweiss.federation import DivergedError, RunError, StrategyError
from edelweiss.models.storage import StoredTensors
from edelweiss.problems import PROBLEMS
from edelweiss.server_app import simulate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from edelweiss.server_app.memory_estimate import remembered
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.problems.example import make
from tests.said import has
from tests.server_app.sites import job, saddle_job

WITH_SAMPLES = [name for name in PROBLEMS if PROBLEMS[name].needs_data]
TASKS = {"maml.ways": 2, "maml.queries": 2, "maml.test-tasks": 1}


@pytest.mark.parametrize("name", ["codasca", "coda", "acc-fcsg-m", "deprl", "ditto", "local-scgd"])
def test_it_is_as_much_as_was_foreseen(name: str, tmp_path: Path) -> None:
    problem = next(one for one in WITH_SAMPLES if can_solve(ALGORITHMS[name], PROBLEMS[one]))
    tasks = problem == "maml"
    keys = job(tmp_path, algorithm=name, problem=problem, dataset="digits" if tasks else "breast-cancer")
    keys |= {"engine": "local", "checkpoint-every": 0, "loss-bound": 1e-30, "state-dir": str(tmp_path / "state")}
    keys |= TASKS if tasks else {}
    with pytest.raises(DivergedError):  # at once, and the sites keep what they remember
        simulate(keys, quiet=True)
    files = [*(tmp_path / "state").glob("run-*/*.memory/*.safetensors")]
    assert len(files) == keys["sites"]
    kept = sum(vector.nbytes for file in files for vector in StoredTensors.read(file).tensors.values())
    network = make(
        problem,
        model="mlp",
        hidden=8,
        shape=(64,) if tasks else (30,),
        dtype=torch.float32,
        **{"ways": 2, "queries": 2} if tasks else {},
    )
    assert remembered(RunConfig.parse(keys), network, network.initial()) == pytest.approx(kept, rel=0.02)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let temporary files lie on a disk: those of tests are in memory, where the run keeps its own."""
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")


@pytest.mark.slow
@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize("workers", [1, 2])
def test_on_a_disk_it_has_the_same_bits(workers: int, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    keys = {"algorithm": "codasca", "engine": "local", "workers": workers, "fraction": 0.5, "sites": 6, "rounds": 4}
    memory = simulate(job(tmp_path / "a", **keys), quiet=False)
    assert "memories" not in capsys.readouterr().out
    disk = simulate(job(tmp_path / "b", **keys, state_memory=1e-9), quiet=False)
    assert "the sites' memories" in capsys.readouterr().out
    for name, vector in memory.arrays.items():
        np.testing.assert_array_equal(vector, disk.arrays[name])


def test_what_there_is_no_room_for_anywhere_is_one_line(tmp_path: Path) -> None:
    config = RunConfig.parse(job(tmp_path))
    with LocalGrid(config, unused_run_id()) as grid, pytest.raises(RunError, check=has(key="state-dir", value=10**18)):
        grid.hold(10**18)


@pytest.mark.usefixtures("disk")
def test_what_a_run_that_goes_on_has_too_much_of_moves_to_the_disk(tmp_path: Path) -> None:
    config = RunConfig.parse(job(tmp_path, state_memory=1e-3))
    with LocalGrid(config, unused_run_id()) as grid:
        file = grid.states.folder / "run-r" / "site-0.memory" / "1-0.safetensors"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"what it remembers")
        assert grid.hold(10**5) == 10**5
        assert grid.states.folder in file.parents
        assert grid.hold(10**7) == 0
        assert not file.exists()
        moved = grid.states.folder / "run-r" / "site-0.memory" / "1-0.safetensors"
        assert moved.read_bytes() == b"what it remembers"
        assert {context.node_config["state-dir"] for context in grid.contexts} == {str(grid.states.folder)}
    assert not moved.exists(), "nothing is left behind"


def test_an_algorithm_that_cannot_run_says_so_itself(tmp_path: Path) -> None:
    graph = tmp_path / "graph.csv"
    graph.write_text("0,1\n", encoding="utf-8")
    keys = saddle_job(tmp_path) | {"algorithm": "d-psgd", "d-psgd.topology": "file", "d-psgd.graph-file": str(graph)}
    with pytest.raises(StrategyError, check=has(key="d-psgd.graph-file", value=[[0, 1], [2]])):
        simulate(keys | {"sites": 3, "engine": "local"})
