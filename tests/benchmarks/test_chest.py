"""The studies of chest X-rays: where their runs find drawn images, and the first of two stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.studies import STUDIES
from benchmarks.sweep import Sweep
from benchmarks.xrays import make
from edelweiss.common.files import read_toml
from edelweiss.lab.compare.runs import OUTCOME, metric
from edelweiss.lab.sweep.job import Job
from edelweiss.lab.sweep.workers import StoppedError, compute
from tests.said import has

SOURCES = STUDIES["chest-sources"]
FEW = {"rounds": 1, "local-steps": 1, "central-test": False}


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    make(tmp_path / "xrays", share=0.0005)
    study = replace(SOURCES, first_reduced={**SOURCES.first_reduced, "local-steps": 2})
    return Sweep(study, tmp_path / study.name, FEW)


def a_run(sweep: Sweep, label: str, seed: int = 0) -> Job:
    """The first reported run of a method at a seed."""
    [method] = (method for method in sweep.study.methods if method.label == label)
    return next(job for job in sweep.reported(method, sweep.grid(method)[0]) if job.settings["seed"] == seed)


@pytest.mark.slow
def test_a_run_goes_on_from_the_first_stage_of_its_seed(sweep: Sweep) -> None:
    two, five = a_run(sweep, "K = 2: and NIH"), a_run(sweep, "K = 5: and VinDr")
    places = [sweep.place(job, "") for job in (two, five, a_run(sweep, two.method.label, seed=1))]
    assert [Path(str(place["data-root"])).name for place in places] == ["first-2", "first-5", "first-2"]
    starts = [Path(str(place["init-from"])) for place in places]
    assert starts[0] == starts[1] != starts[2]
    written = read_toml(starts[0] / "config.toml")
    assert (written["sites"], written["problem"], written["seed"]) == (1, "bce", 0)
    before = (starts[0] / OUTCOME).stat().st_mtime_ns
    assert compute({**two.settings, **places[0]}, sweep.folder / two.name) == ""
    assert sweep.outcome(two) is not None, "where the model lies is no part of what a run is"
    assert read_toml(sweep.folder / two.name / "config.toml")["init-from"] == str(starts[0])
    sweep.place(two, "")
    assert (starts[0] / OUTCOME).stat().st_mtime_ns == before, "it is done once"


@pytest.mark.slow
def test_a_run_of_one_stage_starts_afresh_on_the_same_images(sweep: Sweep) -> None:
    place = sweep.place(a_run(sweep, "K = 5, one stage"), "")
    assert "init-from" not in place
    assert Path(str(place["data-root"])) == sweep.folder.parent / "xrays" / "first-5"
    assert not sweep.folder.exists()


def test_true_images_are_taken_at_the_papers_size(tmp_path: Path) -> None:
    full = Sweep(STUDIES["chest-xrays"], tmp_path / "chest-xrays", full=True)
    job = a_run(full, "codasca")
    assert full.place(job, "/data") == {"data-root": "/data"}
    with pytest.raises(StoppedError, check=has("--data-root", "chest-xrays.toml")):
        full.place(job, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("central.auroc", 0.5),
        ("central.auroc.Pleural Effusion", 0.7),
        ("central.auroc.E. coli", 0.8),
        ("sites.north.auroc", 0.6),
        ("over-sites.auroc.E. coli.mean", 0.4),
        ("central.auroc.Edema", None),
        ("central", None),
    ],
)
def test_a_column_may_be_of_one_label_and_a_label_may_have_dots(path: str, value: float | None) -> None:
    central = {"auroc": 0.5, "auroc.Pleural Effusion": 0.7, "auroc.E. coli": 0.8}
    line = {"central": central, "sites": {"north": {"auroc": 0.6}}, "over-sites": {"auroc.E. coli": {"mean": 0.4}}}
    assert metric(line, path) == value
