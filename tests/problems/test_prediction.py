"""Scores for new patients: the numbers of the run's own evaluation, and what cannot be scored is named, row by row."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from edelweiss.config import RunConfig, read_overrides
from edelweiss.datasets import DataError, DataSummary, ModelSchema, load_site, load_test
from edelweiss.datasets.image_faults import MISSING, OUTSIDE
from edelweiss.datasets.site.inference_input import BLOCK
from edelweiss.datasets.sources.bundled import BREAST_CANCER
from edelweiss.lab.cli import main
from edelweiss.models import ModelError
from edelweiss.problems.metrics import ranking
from edelweiss.problems.prediction import predict
from edelweiss.problems.recalibration import EVIDENCE
from edelweiss.problems.trained_model import TrainedModel
from edelweiss.server_app import Result, simulate
from tests.said import has
from tests.server_app.sites import NAMES, STUDY, hospitals, images, job, run_at, site_job, table, with_study

Rows = Iterable[Iterable[object]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run on public data, for AUC, that has stored no recalibration."""
    result = simulate(job(tmp_path_factory.mktemp("auc")))
    (result.folder / EVIDENCE).unlink(missing_ok=True)
    return result


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run at hospitals, for cross-entropy, with a study file that has categories."""
    folder = tmp_path_factory.mktemp("study")
    text = STUDY.replace("[columns.marker_3]", '[columns.marker_3]\ncodes = { low = -1, "high" = 1.5 }')
    config = site_job(folder, study=with_study(folder, text), problem="bce", algorithm="fedavg")
    return run_at(config, hospitals(folder)).folder


def write(file: Path, header: Iterable[object], rows: Rows) -> Path:
    """Write a table."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return file


def read(file: Path) -> list[dict[str, str]]:
    """Return the lines of a table by column."""
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def held_out(finished: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels of the common test set of a run."""
    test = load_test(RunConfig.parse(read_overrides([str(finished.folder / "config.toml")])).data())
    assert test is not None
    return test.inputs[test.rows].numpy(), test.targets().numpy()


# ---------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_numbers_are_those_of_the_evaluation(finished: Result, tmp_path: Path, kind: str) -> None:
    inputs, labels = held_out(finished)
    order = list(reversed(BREAST_CANCER))  # taken by name
    frame = pd.DataFrame(inputs, columns=list(BREAST_CANCER))[order]
    frame.insert(0, "case", [f"p{number}" for number in range(len(inputs))])
    frame["diagnosis"] = labels
    file = tmp_path / f"patients.{kind}"
    frame.to_parquet(file) if kind == "parquet" else frame.astype(object).to_csv(file, index=False)
    said = predict(TrainedModel.read(finished.folder), file, tmp_path / "out.csv")
    lines = read(tmp_path / "out.csv")
    assert list(lines[0]) == ["case", "diagnosis", "score"], "what is no feature is kept; AUC gives no probabilities"
    assert [line["case"] for line in lines] == list(frame["case"])
    scores = np.array([float(line["score"]) for line in lines])
    central = finished.metrics[-1]["central"]
    assert ranking(labels, scores) == {name: central[name] for name in ("auroc", "auprc")}, "to the last bit"
    assert "not in the model's order" in said[0]


@pytest.mark.slow
def test_chunks_change_nothing(finished: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, _ = held_out(finished)
    file = write(tmp_path / "patients.csv", BREAST_CANCER, np.tile(inputs, (20, 1)).tolist())
    model = TrainedModel.read(finished.folder)
    predict(model, file, tmp_path / "whole.csv")
    monkeypatch.setattr("edelweiss.datasets.site.inference_input.CELLS", 1)
    largest = []
    scored = TrainedModel.scores
    monkeypatch.setattr(TrainedModel, "scores", lambda self, rows: largest.append(len(rows)) or scored(self, rows))
    predict(model, file, tmp_path / "parts.csv")
    assert (tmp_path / "whole.csv").read_bytes() == (tmp_path / "parts.csv").read_bytes()
    assert len(read(tmp_path / "parts.csv")) == 20 * len(inputs) > 2 * BLOCK
    assert max(largest) == BLOCK, "no more is in memory at once"


def test_a_missing_value_is_the_mean_of_training(finished: Result, tmp_path: Path) -> None:
    inputs, _ = held_out(finished)
    model = TrainedModel.read(finished.folder)
    mean = [[model.data_summary.shift[0], *inputs[0, 1:].tolist()]]
    gone = [[spelling, *inputs[0, 1:].tolist()] for spelling in ("", "?", "NA", " nan ")]
    said = predict(model, write(tmp_path / "p.csv", BREAST_CANCER, mean + gone), tmp_path / "out.csv")
    scores = [float(line["score"]) for line in read(tmp_path / "out.csv")]
    assert scores == pytest.approx([scores[0]] * 5, abs=1e-6)
    assert abs(scores[0] - float(model.scores(torch.from_numpy(inputs[:1])))) > 1e-3, "the feature counts"
    assert said[0].startswith("4 missing values, ")
    [filled, _, last] = predict(model, write(tmp_path / "one.csv", BREAST_CANCER, gone[:1]), tmp_path / "its.csv")
    assert filled.startswith("1 missing value, ")
    assert last.startswith("1 patient in ")


def test_probabilities_after_cross_entropy_in_the_study_s_own_spelling(studied: Path, tmp_path: Path) -> None:
    model = TrainedModel.read(studied)
    rows = [("p1", 0.5, "none", 1, "LOW"), ("p2", 0.5, "", 1, "-1"), ("p3", 0, 0, 0, "high")]
    rows = [row for row in rows if row[-1] != "-1"]
    file = write(tmp_path / "p.csv", ["case", *NAMES], rows)
    said = predict(model, file, tmp_path / "out.csv")
    values = torch.tensor([[0.5, np.nan, 1, -1], [0, 0, 0, 1.5]], dtype=torch.float32)
    scores = model.scores(values)
    lines = read(tmp_path / "out.csv")
    assert [float(line["score"]) for line in lines] == scores.tolist()
    assert [float(line["probability"]) for line in lines] == torch.sigmoid(scores).tolist()
    assert any(f"{model.data_summary.prior:.1%}" in line for line in said)


def test_a_stored_recalibration_makes_probabilities(finished: Result, tmp_path: Path) -> None:
    for name in ("model.safetensors", "status.json"):
        (tmp_path / name).write_bytes((finished.folder / name).read_bytes())
    evidence = '{"version": 1, "probabilities": {"by": "platt", "intercept": -1.5, "slope": 2.0}}'
    (tmp_path / "evidence.json").write_text(evidence)
    inputs, _ = held_out(finished)
    file = write(tmp_path / "p.csv", BREAST_CANCER, inputs[:5].tolist())
    said = predict(TrainedModel.read(tmp_path), file, tmp_path / "out.csv")
    for line in read(tmp_path / "out.csv"):
        assert float(line["probability"]) == pytest.approx(1 / (1 + np.exp(1.5 - 2 * float(line["score"]))), rel=1e-12)
    assert "Platt" in said[-2]
    wrong = {"probabilities": evidence.replace("2.0", '"steep"'), "version": evidence.replace("1,", "99,", 1)}
    for key, text in wrong.items():
        (tmp_path / "evidence.json").write_text(text)
        with pytest.raises(ModelError) as caught:
            TrainedModel.read(tmp_path)
        assert caught.value.key == key
    (tmp_path / "evidence.json").write_text(evidence.replace("-1.5", "null").replace("2.0", "null"))
    assert not TrainedModel.read(tmp_path).has_probabilities, "the fit is undefined"


def test_a_model_that_names_no_features_takes_them_by_their_fingerprint(tmp_path: Path) -> None:
    model = TrainedModel.read(run_at(site_job(tmp_path), hospitals(tmp_path)).folder)
    features, _ = table(6, seed=3)
    rows = [[f"p{number}", *row, 1] for number, row in enumerate(features.tolist())]
    file = write(tmp_path / "p.csv", ["case", *NAMES, "label"], rows)
    with pytest.raises(DataError, check=has(model.data_summary.columns, 4, "'case'", "--others")):
        predict(model, file, tmp_path / "out.csv")
    predict(model, file, tmp_path / "out.csv", ["case"])
    assert list(read(tmp_path / "out.csv")[0]) == ["case", "label", "score"], "the label is that of the run"
    with pytest.raises(DataError, check=has("'case'?", key="cases")):
        predict(model, file, tmp_path / "again.csv", ["cases"])


@pytest.mark.slow
def test_images_are_scored_as_they_were_evaluated(tmp_path: Path) -> None:
    nodes = [images(tmp_path, site, 100) for site in range(3)]
    config = site_job(tmp_path, model="lenet5", problem="bce", algorithm="fedavg", holdout_share=0.5)
    result = run_at(config, nodes)
    model = TrainedModel.read(result.folder)
    file = Path(str(nodes[0]["data-dir"])) / "labels.csv"
    predict(model, file.parent, tmp_path / "out.csv")
    lines = read(tmp_path / "out.csv")
    assert [line["path"] for line in lines] == [f"{number}.png" for number in range(10)]
    data = load_site(config.data(str(file.parent)), 0, 1)
    samples = model.data_summary.standardised(data.train)
    expected = dict(zip(samples.rows.tolist(), model.problem.logits(model.x, samples).tolist(), strict=True))
    for row, score in expected.items():
        assert float(lines[row]["score"]) == pytest.approx(score, abs=1e-6)
    with file.open("a") as stream:
        stream.write("\nabsent.png,1\n../secret.png,0\n")
    with pytest.raises(DataError) as told:
        predict(model, file, tmp_path / "again.csv")
    assert has(f"{MISSING.wrong}: row 11 ('absent.png')", f"{OUTSIDE.wrong}: row 12 ('../secret.png')")(told.value)
    assert not (tmp_path / "again.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["grey", "rgb"])
def test_images_of_any_size_and_colour_come_to_the_form_of_training(tmp_path: Path, colour: str) -> None:
    nodes = [images(tmp_path, site, 100) for site in range(3)]
    folder = Path(str(nodes[0]["data-dir"]))
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (40, 30, 3), np.uint8)).save(folder / "3.png")
    Image.fromarray(rng.integers(0, 4096, (20, 50), np.uint16)).save(folder / "4.png")
    keys = {"image_size": 20, "image_fit": "pad", "image_colour": colour, "holdout_share": 0.5}
    config = site_job(tmp_path, problem="bce", algorithm="fedavg", model="lenet5", **keys)
    model = TrainedModel.read(run_at(config, nodes).folder)
    assert (model.model_schema.image_fit, model.model_schema.image_colour) == ("pad", colour)
    predict(model, folder, tmp_path / "out.csv")
    lines, data = read(tmp_path / "out.csv"), load_site(config.data(str(folder)), 0, 1)
    for part in (data.train, data.held_out):
        samples = model.data_summary.standardised(part)
        for row, score in zip(samples.rows.tolist(), model.problem.logits(model.x, samples).tolist(), strict=True):
            assert float(lines[row]["score"]) == pytest.approx(score, abs=1e-5)


def test_grey_images_are_shown_to_a_model_of_colours(tmp_path: Path) -> None:
    nodes = [images(tmp_path, site, 100) for site in range(3)]
    for node in nodes:
        Image.new("RGB", (16, 16), (200, 9, 9)).save(Path(str(node["data-dir"])) / "0.png")
    config = site_job(tmp_path, problem="bce", algorithm="fedavg", model="lenet5", rounds=1)
    model = TrainedModel.read(run_at(config, nodes).folder)
    assert model.data_summary.shape == (3, 16, 16)
    predict(model, Path(str(images(tmp_path, 7, 90)["data-dir"])), tmp_path / "out.csv")
    assert len(read(tmp_path / "out.csv")) == 10


def test_a_model_says_the_least_format_that_is_read_as_it_is_meant() -> None:
    assert ModelSchema(image_size=8).facts()["format"] == 2
    told = ModelSchema(image_size=8, image_fit="pad").facts()
    assert told["format"] == 3
    assert ModelSchema.of_file(told, DataSummary()) == ModelSchema(image_size=8, image_fit="pad")
    with pytest.raises(ValueError, check=has("image_colour")):
        ModelSchema.of_file({"data": {"image_colour": "blue"}}, DataSummary())


# ---------------------------------------------------------------------- what cannot be scored

GOOD = ",".join(["1.5"] * len(BREAST_CANCER))
HEADER = ",".join(BREAST_CANCER)
RENAMED = HEADER.replace("mean radius", "mean_radius")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "its first line must name the columns"),
        (HEADER, "has no rows"),
        (f"{GOOD}\n{GOOD}", "the first line seems to hold values"),
        (f"{RENAMED}\n{GOOD}", "lacks 1 of the model's 30 features: 'mean radius' Did you mean 'mean_radius'?"),
        (f"{HEADER},mean area\n{GOOD},1", "'mean area' names more than one column"),
        (f"{HEADER},score\n{GOOD},1", "the column 'score' would occur twice: rename it"),
        (f"{HEADER}\n{GOOD}\n{GOOD},7", "lines of another length: row 2 has 31 values: there are 30 columns"),
        (f"{HEADER}\nhigh{GOOD[3:]}", "column 'mean radius': row 1 ('high'): it must be a number"),
        (f"{HEADER}\n1e30{GOOD[3:]}", "column 'mean radius': row 1 ('1e30'): it must be within +-1e+18"),
        ("<html>", "it is HTML or XML"),
        ("PK\3\4", "it is a zip file; an Excel workbook is called .xlsx"),
        ("\0\udcff", "NUL characters"),
    ],
)
def test_what_is_no_table_of_the_model_s_is_refused(
    finished: Result, tmp_path: Path, content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.csv").write_bytes(content.encode("utf-8", "surrogateescape"))
    out = tmp_path / "out.csv"
    assert main(["predict", str(finished.folder), str(tmp_path / "p.csv"), "--to", str(out)]) == 1
    text = capsys.readouterr().err
    assert said in text
    assert "Traceback" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"], "nothing is left half-written"


def test_a_workbook_that_is_refused_is_not_told_to_be_text(finished: Result, tmp_path: Path) -> None:
    write(tmp_path / "p.csv", BREAST_CANCER, [["=1+1"] * len(BREAST_CANCER)])
    pd.read_csv(tmp_path / "p.csv").to_excel(tmp_path / "p.xlsx", index=False)
    with pytest.raises(DataError, check=has("A2")) as told:
        predict(TrainedModel.read(finished.folder), tmp_path / "p.xlsx", tmp_path / "out.csv")
    assert str(told.value).count("p.xlsx") == 1
    assert "text" not in str(told.value)
    assert not (tmp_path / "out.csv").exists()


def test_all_that_is_wrong_is_told_at_once_over_all_chunks(
    studied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edelweiss.datasets.site.inference_input.CELLS", 1)
    rows: list[list[object]] = [[0, 0, 0, "low"] for _ in range(3 * BLOCK)]
    rows[4][3] = "middling"
    rows[7][0] = 51
    for row in range(2000, 2010):
        rows[row][1] = "3.4.2020"
    file = write(tmp_path / "p.csv", NAMES, rows)
    with pytest.raises(DataError) as told:
        predict(TrainedModel.read(studied), file, tmp_path / "out.csv")
    text = str(told.value)
    assert text.startswith("3 problems")
    assert "column 'marker_3': row 5 ('middling'): allowed are low, high" in text
    assert "column 'marker_0': row 8 ('51'): it must be from -50 to 50 mmol/l" in text
    assert "row 2005 ('3.4.2020') and 5 more: dates are not" in text
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(("filler", "wrong"), [(b"\0", "NUL"), (b"1", "16,777,216")])
def test_what_is_no_table_is_refused_before_it_fills_the_memory(
    finished: Result, tmp_path: Path, filler: bytes, wrong: str
) -> None:
    file = tmp_path / "p.csv"
    with file.open("wb") as out:
        out.write(f"{HEADER}\n".encode() + filler * (2**24 + 2**20))
    os.truncate(file, 10**12)  # more than anybody reads: of zeros, which take no place
    with pytest.raises(DataError, check=has(wrong)):
        predict(TrainedModel.read(finished.folder), file, tmp_path / "out.csv")


def test_a_file_that_exists_is_not_replaced(finished: Result, tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text(f"{HEADER}\n{GOOD}\n")
    for target in (file, tmp_path / "absent" / "out.csv"):
        with pytest.raises(DataError) as caught:
            predict(TrainedModel.read(finished.folder), file, target)
        assert caught.value.key == "target"
    assert file.read_text() == f"{HEADER}\n{GOOD}\n"


# ---------------------------------------------------------------------- values far outside the training range


@pytest.mark.parametrize("rows", [1, 40])
def test_another_unit_is_warned_of_with_the_same_scores(
    finished: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: int
) -> None:
    """On standard error, with the same scores and exit status: a file is read by other programs."""
    inputs, _ = held_out(finished)
    good = inputs[:rows].astype(np.float64)
    wrong = good.copy()
    wrong[:, 3] *= 1000
    header = [*BREAST_CANCER]
    scored = []
    for name, values in (("good", good), ("wrong", wrong)):
        file = write(tmp_path / f"{name}.csv", header, values.tolist())
        assert main(["predict", str(finished.folder), str(file), "--to", str(tmp_path / f"{name}-out.csv")]) == 0
        said = capsys.readouterr()
        assert "far outside" not in said.out
        scored.append(len(read(tmp_path / f"{name}-out.csv")))
        if name == "good":
            assert not said.err
            continue
        [line] = said.err.splitlines()
        assert line.startswith("warning: ")
        assert f"column {header[3]!r}: {rows} of {rows} values are far outside" in line
    assert scored == [rows, rows]


def test_the_first_of_many_columns_are_named_in_warnings(finished: Result, tmp_path: Path) -> None:
    inputs, _ = held_out(finished)
    warnings: list[str] = []
    file = write(tmp_path / "p.csv", BREAST_CANCER, (inputs[:5].astype(np.float64) * 1e6 - 1e8).tolist())
    predict(TrainedModel.read(finished.folder), file, tmp_path / "out.csv", warn=warnings.append)
    assert len(warnings) == 11
    assert "20 more columns" in warnings[-1]
