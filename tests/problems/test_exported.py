"""A model as ONNX: other programs get this one's scores from raw values."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from edelweiss.datasets.sources.bundled import BREAST_CANCER
from edelweiss.lab.cli import main
from edelweiss.models import ModelError
from edelweiss.problems import onnx_export as exported
from edelweiss.problems.onnx_export import Exported, export
from edelweiss.problems.recalibration import EVIDENCE
from edelweiss.problems.trained_model import TrainedModel
from edelweiss.server_app import simulate
from tests.server_app.sites import images, job, run_at, site_job

INSTALLED = pytest.mark.skipif(bool(exported.missing_packages()), reason="the extra 'onnx' is not installed")


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run for AUC on a table, that has stored no recalibration."""
    folder = simulate(job(tmp_path_factory.mktemp("run"))).folder
    (folder / EVIDENCE).unlink(missing_ok=True)
    return folder


def patients(model: TrainedModel) -> torch.Tensor:
    """Draw raw values, with missing ones."""
    random = torch.Generator().manual_seed(1)
    shift, scale = torch.tensor(model.data_summary.shift), torch.tensor(model.data_summary.scale)
    inputs = torch.randn(7, len(shift), generator=random) * scale + shift
    inputs[torch.rand(inputs.shape, generator=random) < 0.2] = torch.nan
    return inputs


@pytest.mark.parametrize("standardise", [True, False])
def test_what_is_exported_takes_raw_values(tmp_path: Path, standardise: bool) -> None:
    model = TrainedModel.read(simulate(job(tmp_path, standardise=standardise, rounds=1)).folder)
    inputs = torch.randn(7, 30).masked_fill(torch.rand(7, 30) < 0.2, torch.nan)
    score, *_ = Exported(model)(inputs)
    assert torch.allclose(score.double(), model.scores(inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@INSTALLED
def test_another_program_gets_the_same_scores(ranking: Path, tmp_path: Path) -> None:
    import onnxruntime

    file = tmp_path / "model.onnx"
    assert main(["export", str(ranking), "--onnx", str(file)]) == 0
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    model = TrainedModel.read(ranking)
    inputs = patients(model)
    [scores] = session.run(["score"], {"inputs": inputs.numpy()})
    assert [each.name for each in session.get_outputs()] == ["score"], "AUC gives no probabilities"
    np.testing.assert_allclose(scores, model.scores(inputs), rtol=1e-5, atol=1e-5)
    said = session.get_modelmeta().custom_metadata_map
    assert tuple(json.loads(said["features"])) == BREAST_CANCER
    assert said["missing"] == "mean"
    for target in (str(file), "a\0b"):
        assert main(["export", str(ranking), "--onnx", target]) == 1
        with pytest.raises(ModelError) as caught:
            export(model, target)
        assert caught.value.key == "target"


@INSTALLED
@pytest.mark.slow
@pytest.mark.usefixtures("small_resnet")
def test_images_and_probabilities(tmp_path: Path) -> None:
    import onnxruntime

    config = site_job(tmp_path, model="resnet18", problem="bce", algorithm="fedavg", rounds=1, local_steps=1)
    model = TrainedModel.read(run_at(config, [images(tmp_path, site, 100) for site in range(3)]).folder)
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    pixels = torch.randint(0, 256, (3, *model.data_summary.shape), dtype=torch.uint8)
    score, probability = session.run(["score", "probability"], {"inputs": pixels.float().numpy()})
    np.testing.assert_allclose(score, model.scores(pixels), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(probability, torch.sigmoid(model.scores(pixels)), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@INSTALLED
def test_a_file_with_different_scores_is_not_written(
    ranking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainedModel, "scores", lambda self, inputs: torch.zeros(len(inputs), dtype=torch.float64))
    with pytest.raises(ModelError) as caught:
        export(TrainedModel.read(ranking), tmp_path / "model.onnx")
    assert caught.value.key == "score"
    assert not list(tmp_path.iterdir())


def test_without_the_extra_the_missing_packages_are_named(
    ranking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError) as caught:
        export(TrainedModel.read(ranking), tmp_path / "model.onnx")
    assert caught.value.key == "packages"
    assert "onnxruntime" in caught.value.value
