"""A column without any value: at one hospital it is legal and filled like any missing value, everywhere it is said."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from edelweiss.problems.prediction import predict
from edelweiss.problems.trained_model import TrainedModel
from edelweiss.server_app import simulate
from tests.said import lines, warnings
from tests.server_app.sites import NAMES, run_at, site_job, table, with_study, write_table

LINEAR = {"algorithm": "fedavg", "problem": "bce", "model": "linear", "rounds": 2, "local-steps": 3}
HOSPITALS = ("north", "south", "west")
EMPTY = 1  # the place of the column


def folders(root: Path, empty: tuple[str, ...]) -> np.ndarray:
    """Write hospitals' folders; return all values of the column that some of them lack, NaN there."""
    values = []
    for place, name in enumerate(HOSPITALS):
        features, labels = table(60, seed=place)
        features = features + 5
        if name in empty:
            features[:, EMPTY] = np.nan
        file = write_table(root / name, features, labels) / "data.csv"
        file.write_text(file.read_text().replace("nan", ""))
        values.append(features[:, EMPTY])
    return np.concatenate(values)


def simulated(root: Path, **keys: object) -> Path:
    """Run over the folders, with nearly all rows to train on."""
    config = {
        "dataset": "site-folders",
        "data-root": str(root),
        "partition": "sites",
        "sites": 3,
        "workers": 1,
        "holdout-share": 0.0,
        "test-share": 0.05,
        "thin-share": 0.0,
        "runs-dir": str(root.parent / "runs"),
    }
    result = simulate({**config, **LINEAR, **keys}, quiet=False)
    assert all(np.isfinite(row["central"]["auroc"]) for row in result.metrics)
    return result.folder


def scores(model: TrainedModel, folder: Path, row: list[str]) -> list[float]:
    """Score one patient."""
    (folder / "new.csv").write_text("\n".join(map(",".join, [NAMES, row])) + "\n")
    (folder / "scores.csv").unlink(missing_ok=True)
    predict(model, folder / "new.csv", folder / "scores.csv")
    with (folder / "scores.csv").open(newline="") as stream:
        return [float(line["score"]) for line in csv.DictReader(stream)]


def test_a_column_that_is_empty_at_one_hospital_is_filled_by_the_mean_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = folders(tmp_path / "data", ("south",))
    model = TrainedModel.read(simulated(tmp_path / "data"))
    said = capsys.readouterr().out
    assert warnings(said) == warnings(said, "south")
    assert lines(said, "'south'", "missing")
    assert model.data_summary.shift[EMPTY] == pytest.approx(np.nanmean(values), abs=0.15)
    assert model.data_summary.scale[EMPTY] == pytest.approx(np.nanstd(values), rel=0.1)
    row = ["5.5"] * 4
    mean = [*row[:EMPTY], repr(float(np.float32(model.data_summary.shift[EMPTY]))), *row[EMPTY + 1 :]]
    assert scores(model, tmp_path, [*row[:EMPTY], "", *row[EMPTY + 1 :]]) == scores(model, tmp_path, mean)


def test_a_column_that_is_empty_everywhere_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders(tmp_path / "data", HOSPITALS)
    model = TrainedModel.read(simulated(tmp_path / "data"))
    assert warnings(capsys.readouterr().out, repr(NAMES[EMPTY]))
    assert (model.data_summary.shift[EMPTY], model.data_summary.scale[EMPTY]) == (0, 1)
    assert np.isfinite(scores(model, tmp_path, ["5.5", "", "5.5", "5.5"])).all()


@pytest.mark.parametrize("named", [False, True])
def test_hospitals_columns_are_numbered_unless_a_study_file_names_them(
    tmp_path: Path, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folders(tmp_path, HOSPITALS)
    study = {"study": with_study(tmp_path)} if named else {}
    nodes = [{"site": name, "data-dir": str(tmp_path / name), **study} for name in HOSPITALS]
    run_at(site_job(tmp_path, **{**LINEAR, **study}), nodes, quiet=False)
    said = capsys.readouterr().out
    assert warnings(said, repr(NAMES[EMPTY]) if named else f"number {EMPTY + 1}")
    assert named or NAMES[EMPTY] not in said
