"""What newcomers get from the runs of a study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import newcomers
from benchmarks.newcomers import main, measure
from benchmarks.studies import STUDIES
from benchmarks.sweep import Sweep
from edelweiss.server_app import simulate


@pytest.mark.slow
def test_a_head_of_its_own_serves_a_new_worker_better_than_an_untrained_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newcomers, "STEPS", 60)
    keys = {"algorithm": "fedrep", "problem": "cross-entropy", "dataset": "digits", "concentration": 0.3, "sites": 4}
    keys |= {"rounds": 8, "workers": 1, "fedrep.body-steps": 5, "runs-dir": str(tmp_path), "run-name": "run"}
    simulate(keys)
    before, after = measure(tmp_path / "run", "")
    assert after > before + 0.1
    assert (before, after) == measure(tmp_path / "run", ""), "the same new workers, the same batches"


@pytest.mark.slow
def test_new_workers_begin_alike_with_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the trained head of a common model serves them, nor the first one, which its body was trained with."""
    monkeypatch.setattr(newcomers, "STEPS", 60)
    keys = {"algorithm": "fedavg", "problem": "cross-entropy", "dataset": "digits", "concentration": 0.3, "sites": 4}
    keys |= {"rounds": 8, "workers": 1, "fedavg.lr": 0.3, "runs-dir": str(tmp_path), "run-name": "run"}
    trained = simulate(keys).metrics[-1]["central"]["accuracy"]
    before, after = measure(tmp_path / "run", "")
    assert before < trained - 0.4
    assert after > before + 0.1


def test_without_runs_it_says_which_command_makes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--runs-dir", str(tmp_path), "--results-dir", str(tmp_path)]
    assert main(["deprl-mnist", *folders]) == 1
    assert "python -m benchmarks.reproduce deprl-mnist" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_table_has_the_papers_numbers_where_there_are_some() -> None:
    study = STUDIES["deprl-mnist"]
    sweep = Sweep(study, Path())
    method = next(method for method in study.methods if method.label == "fedrep")
    jobs = sweep.reported(method, {})
    text = newcomers.markdown(study, [(job, (0.25, float(job.cell["concentration"]))) for job in jobs])
    first, _, line = [line for line in text.splitlines() if line.startswith("|")]
    assert first.count("paper |") == 3
    # Table 8, Fashion-MNIST, FedRep.
    assert line == (
        "| fedrep | 0.2500 ± 0.0000 | 0.1000 ± 0.0000 | 0.8612 | 0.2500 ± 0.0000 | 0.3000 ± 0.0000 | 0.7728 "
        "| 0.2500 ± 0.0000 | 0.5000 ± 0.0000 | 0.6996 |"
    )
    bare = newcomers.markdown(replace(study, name="another"), [(job, (0.25, 0.5)) for job in jobs])
    assert "paper" not in bare.splitlines()[4]
