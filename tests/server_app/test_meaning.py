"""A model's file says what its inputs and labels mean, as far as the coordinator rightly knows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from edelweiss.config import RunConfig
from edelweiss.config.study import read_study
from edelweiss.datasets import DataSummary, ModelSchema
from edelweiss.datasets.site.study import Column
from edelweiss.datasets.sources.bundled import BREAST_CANCER
from edelweiss.federation import RunError
from edelweiss.models import ModelError
from edelweiss.models.storage import StoredTensors, write_tensors
from edelweiss.problems.trained_model import TrainedModel
from edelweiss.server_app import simulate
from edelweiss.server_app.init_model import InitModel
from tests.said import has, lines
from tests.server_app.sites import NAMES, STUDY, hospitals, job, run_at, site_job, with_study

pytestmark = pytest.mark.usefixtures("public_batches")

UNNAMED = ("features", "study")


def facts_of(folder: Path) -> dict[str, Any]:
    """Return what the model's file of a run says."""
    return StoredTensors.read(folder / "model.safetensors").facts


def test_public_data_are_named_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    facts = facts_of(simulate(job(tmp_path, rounds=1)).folder)
    model_schema = ModelSchema.of_file(facts, DataSummary.of_file(facts))
    assert model_schema.features == BREAST_CANCER
    assert model_schema.dataset == "breast-cancer"
    assert facts["data"]["missing"] == "mean"
    zero = facts_of(simulate(job(tmp_path, rounds=1, standardise=False)).folder)
    assert zero["data"]["missing"] == "zero"


def test_hospitals_tell_no_names_of_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_at(site_job(tmp_path), hospitals(tmp_path), quiet=False)
    assert lines(capsys.readouterr().out, *UNNAMED)
    everything = b"".join(path.read_bytes() for path in result.folder.rglob("*") if path.is_file())
    assert b"marker" not in everything
    assert any("does not name its features" in note for note in TrainedModel.read(result.folder).notes)


@pytest.mark.slow
def test_a_study_file_at_the_coordinator_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = with_study(tmp_path)
    plain = run_at(site_job(tmp_path), hospitals(tmp_path)).folder
    folder = run_at(site_job(tmp_path, study=study), hospitals(tmp_path), quiet=False).folder
    assert not lines(capsys.readouterr().out, *UNNAMED)
    model_schema = TrainedModel.read(folder).model_schema
    assert model_schema.features == NAMES
    assert model_schema.study == read_study(study), "units, ranges, categories and spellings survive the file"
    assert model_schema.study.columns[0] == Column("marker_0", "mmol/l", -50, 50)
    assert (model_schema.label, model_schema.classes) == ("label", (("0",), ("1",)))
    tensors = [load_file(place / "model.safetensors") for place in (plain, folder)]
    assert all(tensors[0][name].equal(tensors[1][name]) for name in tensors[0]), "it changes nothing at the sites"


def test_a_study_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    study = with_study(tmp_path, STUDY.replace("marker_3", "marker_4"))
    with pytest.raises(RunError, check=has(key="study", value=study)):
        run_at(site_job(tmp_path, study=study), hospitals(tmp_path))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's file of a short run."""
    return simulate(job(tmp_path_factory.mktemp("run"), rounds=1)).folder / "model.safetensors"


def rewritten(file: Path, target: Path, **changes: object) -> Path:
    """Write a model's file whose facts say something else; None leaves one out."""
    facts = StoredTensors.read(file).facts | changes
    write_tensors(target, load_file(file), {key: value for key, value in facts.items() if value is not None})
    return target


def test_an_old_file_is_read_and_says_so(model: Path, tmp_path: Path) -> None:
    file = rewritten(model, tmp_path / "model.safetensors", format=None, data=None)
    old = TrainedModel.read(file)
    assert len(old.notes) == 1
    assert old.model_schema == ModelSchema()


@pytest.mark.parametrize(
    ("changes", "key", "named"),
    [
        ({"format": 5}, "", ["format 5", "1 to 4"]),
        ({"format": "new"}, "", ["format 'new'"]),
        ({"data": 3}, "", ["data."]),
        ({"data": {"features": [1, 2]}}, "", ["data.features.0"]),
        ({"data": {"features": ["age"]}}, "", ["data.features"]),
        ({"data": {"missing": "median"}}, "", ["data.missing", "'mean'", "'zero'"]),
        ({"head": "fresh"}, "head", []),
        ({"statistics": "fresh"}, "statistics", ['bn = "local"']),
        ({"problem": "fair"}, "problem", ["'fair'"]),
        ({"problem": "saddle"}, "problem", ["'saddle'"]),
        ({"problem": ["auc"]}, "problem", ["['auc']"]),
        ({"hidden": "many"}, "model", ["hidden = 'many'"]),
        ({"hidden": 9}, "state", []),
        ({"shape": None}, "shape", []),
        ({"model": "mpl"}, "model", ["mpl"]),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_line(
    model: Path, tmp_path: Path, changes: dict[str, object], key: str, named: list[str]
) -> None:
    file = rewritten(model, tmp_path / "model.safetensors", **changes)
    with pytest.raises(ModelError, check=has(*named, key=key)) as told:
        TrainedModel.read(file)
    assert "\n" not in str(told.value)


def test_a_newer_file_is_none_to_start_from_either(model: Path, tmp_path: Path) -> None:
    file = rewritten(model, tmp_path / "model.safetensors", format=5)
    with pytest.raises(ModelError, check=has("format 5", value=file)):
        InitModel.read(RunConfig.parse(job(tmp_path, init_from=str(file))))


def test_a_run_folder_that_is_not_complete(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, check=has(key="file")):
        TrainedModel.read(tmp_path)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ModelError, check=has(key="file")):
        TrainedModel.read(tmp_path)
    data = model.read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-40])
    with pytest.raises(ModelError, check=has(key="file")):
        TrainedModel.read(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(data[:-4] + b"\0\0\0\1")
    with pytest.raises(ModelError, check=has(key="checksum")):
        TrainedModel.read(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(data)
    (tmp_path / "status.json").write_text('{"status": "stopped"}')
    assert TrainedModel.read(tmp_path).notes == (
        "the run is incomplete (status.json says 'stopped'): this is the model of its last checkpoint",
    )
