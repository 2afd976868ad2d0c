"""A model of several labels, used: a column of scores for each, and of probabilities where there are such."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.datasets import DataSummary, ModelSchema
from edelweiss.models import ModelError
from edelweiss.models.storage import StoredTensors
from edelweiss.problems.onnx_export import Exported, export, missing_packages
from edelweiss.problems.prediction import predict
from edelweiss.problems.trained_model import TrainedModel
from edelweiss.server_app import simulate
from tests.said import has
from tests.server_app.labelled import LABELS, folders, labelled


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three labels, whose scores are no probabilities."""
    place = tmp_path_factory.mktemp("run")
    return simulate(labelled(place, folders(place / "data"), rounds=1)).folder


def edited(run: Path, folder: Path, **labels: dict[str, Any] | None) -> Path:
    """Copy a run with another map for some labels; None takes a label out."""
    shutil.copytree(run, folder)
    file = folder / "evidence.json"
    found = json.loads(file.read_text())
    for name, fit in labels.items():
        if fit is None:
            del found["labels"][name]
        else:
            found["labels"][name]["probabilities"] |= fit
    file.write_text(json.dumps(found))
    return folder


def predicted(model: TrainedModel, folder: Path) -> tuple[torch.Tensor, list[dict[str, str]]]:
    """Return patients as they are, and the lines that are written of them."""
    inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    inputs[0, 0] = torch.nan
    rows = [["who", "f2", "f0", "f1"]]
    rows += [
        [f"p{n}", *("" if np.isnan(x) else repr(x) for x in (c, a, b))] for n, (a, b, c) in enumerate(inputs.tolist())
    ]
    (folder / "patients.csv").write_text("\n".join(",".join(row) for row in rows))
    predict(model, folder / "patients.csv", folder / "out.csv")
    with (folder / "out.csv").open(newline="") as stream:
        return inputs, list(csv.DictReader(stream))


@pytest.mark.slow
def test_the_columns_are_the_outputs_of_the_network_and_platts_of_them(run: Path, tmp_path: Path) -> None:
    model = TrainedModel.read(run)
    inputs, lines = predicted(model, tmp_path)
    stored = StoredTensors.read(run / "model.safetensors")
    tensors, facts = stored.tensors, stored.facts
    weight, bias = (next(t for t in tensors.values() if t.ndim == ndim) for ndim in (2, 1))
    values = (inputs - torch.tensor(facts["shift"])) / torch.tensor(facts["scale"])
    scores = values.nan_to_num(0) @ weight.T + bias
    fits = json.loads((run / "evidence.json").read_text())["labels"]
    kinds = ("score", "probability")
    assert list(lines[0]) == ["who", *(f"{kind}.{label}" for label in LABELS for kind in kinds)]
    for place, label in enumerate(LABELS):
        found = {kind: [float(line[f"{kind}.{label}"]) for line in lines] for kind in kinds}
        np.testing.assert_allclose(found["score"], scores[:, place], rtol=1e-5, atol=1e-6)
        fit = fits[label]["probabilities"]
        expected = 1 / (1 + np.exp(-(fit["intercept"] + fit["slope"] * np.array(found["score"]))))
        np.testing.assert_allclose(found["probability"], expected, rtol=1e-12)


def test_a_label_without_a_map_has_no_probabilities(run: Path, tmp_path: Path) -> None:
    none = {"by": "platt", "intercept": None, "slope": None}
    model = TrainedModel.read(edited(run, tmp_path / "run", Edema=none, Effusion=None))
    _, lines = predicted(model, tmp_path)
    assert list(lines[0]) == ["who", "score.Edema", "score.Effusion", f"score.{LABELS[2]}", f"probability.{LABELS[2]}"]
    assert "Edema, Effusion: none could be fitted" in model.describe_scores()
    assert Exported(model)(torch.zeros(1, 3))[1].isnan().tolist() == [[True, True, False]]


def test_log_odds_are_probabilities_with_the_shares_of_each_label(run: Path, tmp_path: Path) -> None:
    config = labelled(tmp_path, folders(tmp_path / "data"), rounds=1, algorithm="fedavg", problem="bce")
    model = TrainedModel.read(simulate(config).folder)
    _, lines = predicted(model, tmp_path)
    for label, prior in zip(LABELS, model.data_summary.priors, strict=True):
        assert f"{prior:.1%} of {label}" in model.describe_scores()
        for line in lines:
            score = float(line[f"score.{label}"])
            assert float(line[f"probability.{label}"]) == pytest.approx(1 / (1 + np.exp(-score)))


def test_evidence_of_another_run_is_refused_in_a_line(run: Path, tmp_path: Path) -> None:
    folder = edited(run, tmp_path / "run", Edema=None)
    text = (folder / "evidence.json").read_text()
    (folder / "evidence.json").write_text(text.replace('"Effusion": {', '"Mass": {', 1))
    with pytest.raises(ModelError) as caught:
        TrainedModel.read(folder)
    assert caught.value.key == "labels"
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_packages()), reason=f"not installed: {', '.join(missing_packages())}")
def test_another_program_gets_the_scores_of_each_label(run: Path, tmp_path: Path) -> None:
    import onnxruntime

    model = TrainedModel.read(edited(run, tmp_path / "run", Effusion=None))
    file = tmp_path / "model.onnx"
    said = export(model, file)
    assert any(f"each n x 3: {', '.join(LABELS)}" in line for line in said)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    score, probability = session.run(["score", "probability"], {"inputs": inputs.numpy()})
    np.testing.assert_allclose(score, model.scores(inputs), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(probability, model.probabilities(model.scores(inputs)), rtol=1e-5, atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["labels"]) == list(LABELS)


def test_the_file_says_what_uncertain_and_blank_stood_for(run: Path) -> None:
    facts = StoredTensors.read(run / "model.safetensors").facts
    data_summary = DataSummary.of_file(facts)
    model_schema = ModelSchema.of_file(facts, data_summary)
    assert list(model_schema.unusual()) == [
        "An uncertain value (-1) of Edema counted as positive.",
        f"An uncertain value (-1) of Effusion, {LABELS[2]} was left out.",
        "A blank one was left out, unless the site lacks the label.",
    ]
    assert model_schema.classes == (("0",), ("1",))
    assert ModelSchema.of_file(model_schema.facts(), data_summary) == model_schema


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("names", ["Edema", "Effusion"], "data.labels.names"),
        ("uncertain", ["ones", "perhaps", "ones"], "data.labels.uncertain.1"),
        ("blank", "ones", "data.labels.blank"),
    ],
)
def test_what_it_cannot_say_is_refused(run: Path, key: str, value: object, said: str) -> None:
    facts = StoredTensors.read(run / "model.safetensors").facts
    facts["data"]["labels"][key] = value
    with pytest.raises(ValueError, check=has(said)):
        ModelSchema.of_file(facts, DataSummary.of_file(facts))


def test_it_cannot_name_other_labels_than_the_model_has(run: Path) -> None:
    facts = StoredTensors.read(run / "model.safetensors").facts
    single = DataSummary.of_file({**facts, "labels": [], "priors": []})
    with pytest.raises(ValueError, check=has("data.labels.names", 3)):
        ModelSchema.of_file(facts, single)
