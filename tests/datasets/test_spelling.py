"""What texts in a table mean: numbers, truth and what is missing, alike in all formats; and names like numbers."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bin.run import REPO
from edelweiss.common import ConfigError, Value
from edelweiss.common.numbers import number, whole
from edelweiss.config import RunConfig
from edelweiss.datasets import DataConfig, DataError, DataSummary, ModelSchema, load_site
from edelweiss.datasets.labels import as_label, split_names
from edelweiss.datasets.numbers import MISSING, canonical
from edelweiss.datasets.site.inference_input import open_inference_input
from edelweiss.datasets.site.study import Column, Study
from edelweiss.lab.report import write_report
from edelweiss.problems.prediction import predict
from edelweiss.problems.trained_model import TrainedModel
from edelweiss.server_app import simulate
from tests.said import has
from tests.server_app.sites import run_at, site_job

OUTCOME = "Outcome (0=alive, 1=dead)"
CODES = ("50912", "250.1", "9999", "1e5")  # of MIMIC's items and of ICD-9
NUMBERS = ["0", "-1", "+2", "1.", ".5", "1e5", "-2.5E-3", "007"]
NONE = ["0_2", "１", "1 2", "1,5", "0x10", "infinity", "--1", "1e", ".", "+", "1.2.3", "²", "٣", "1e999", "", "nan"]
Write = Callable[..., DataConfig]


def write_table(file: Path, columns: dict[str, Sequence[object]]) -> Path:
    """Write columns as CSV or Parquet."""
    file.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(columns)
    frame.to_csv(file, index=False) if file.suffix == ".csv" else frame.to_parquet(file)
    return file


def features_of(file: Path) -> np.ndarray:
    """Return the features of a hospital's folder, which has this file alone."""
    part = load_site(DataConfig(dataset="site", data_dir=str(file.parent), holdout_share=0.0), 0, 1)
    return part.train.inputs.numpy()


def new_features(file: Path, names: Sequence[str]) -> np.ndarray:
    """Return the features of the same table, read as new patients'."""
    patients = open_inference_input(
        file, ModelSchema(features=tuple(names)), DataSummary(shape=(len(names),), classes=2)
    )
    return np.concatenate([chunk.inputs.numpy() for chunk in patients.chunks()])


def any_case(words: Iterable[str]) -> list[str]:
    return [form for word in words for form in dict.fromkeys((word, word.upper(), word.title()))]


# ---------------------------------------------------------------------- numbers, truth, what is missing


@pytest.mark.parametrize("text", NUMBERS)
def test_what_a_number_is(text: str) -> None:
    assert number(text) == float(text)
    if text.lstrip("+-").isdigit():
        assert whole(text) == int(text)


@pytest.mark.parametrize("text", NONE)
def test_what_no_number_is(text: str) -> None:
    for read in (number, whole):
        with pytest.raises(ValueError, check=has(repr(text))):
            read(text)
    assert canonical(text) == text.lower(), "nor does it become another class"


@pytest.mark.parametrize("text", [text for text in NONE if text.lower() not in MISSING])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_what_is_no_number_is_refused_in_every_format(tmp_path: Path, text: str, kind: str) -> None:
    file = write_table(tmp_path / f"data.{kind}", {"a": ["1", text], "b": ["1", "2"], "label": ["0", "1"]})
    with pytest.raises(DataError, check=has(key="a", row=2)):
        features_of(file)
    with pytest.raises(DataError, check=has(key="a", row=2)):
        new_features(file, ["a", "b"])
    column = Column("a")
    assert [*Study((column,), "label", (("0",), ("1",))).cells(["1", text], column)[1].values()] == [[1]]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_all_spellings_mean_the_same_in_every_format(tmp_path: Path, kind: str) -> None:
    """And as new patients', and by a study that says nothing else."""
    gone, true, false = any_case(MISSING), any_case(["true"]), any_case(["false"])
    texts = [*gone, *true, *false, *NUMBERS]
    values = [*[math.nan] * len(gone), *[1] * len(true), *[0] * len(false), *map(float, NUMBERS)]
    rest = [str(row % 2) for row in range(len(texts))]
    file = write_table(tmp_path / f"data.{kind}", {"a": texts, "b": rest, "label": rest})
    for found in (features_of(file), new_features(file, ["a", "b"])):
        np.testing.assert_array_equal(found[:, 0], np.float32(values))
    column = Column("a")
    cells, wrong = Study((column,), "label", (("0",), ("1",))).cells(texts, column)
    np.testing.assert_array_equal(cells, values)
    assert not wrong


@pytest.mark.parametrize("truth", [[True, False, None], [True, False, True]])
def test_a_column_of_truth_values_is_one_of_numbers(tmp_path: Path, truth: list[bool | None]) -> None:
    columns: dict[str, Sequence[object]] = {"a": truth, "b": [1, 2, 3], "label": [0, 1, 0]}
    as_text = {name: ["" if value is None else str(value) for value in column] for name, column in columns.items()}
    for name, said in (("data.parquet", columns), ("data.csv", as_text)):
        file = write_table(tmp_path / name.partition(".")[2] / name, said)
        expected = np.float32([math.nan if value is None else value for value in truth])
        np.testing.assert_array_equal(features_of(file)[:, 0], expected)


@pytest.mark.parametrize("text", any_case(MISSING))
def test_a_missing_label_or_patient_stays_a_mistake(table: Write, text: str) -> None:
    with pytest.raises(DataError, check=has(key="label", row=2)):
        load_site(table(f"a,b,label\n1,2,0\n1,2,{text}\n"), 0, 1)
    with pytest.raises(DataError, check=has(key="p", row=2)):
        load_site(table(f"a,p,label\n1,x,0\n1,{text},1\n", patient="p"), 0, 1)


def test_the_page_for_hospitals_has_all_spellings() -> None:
    page = (REPO / "docs" / "data.md").read_text(encoding="utf-8")
    listed = page.partition("**Missing values** of features")[2].partition("in any case")[0]
    assert {"", *re.findall("`(.*?)`", listed.lower())} == {*MISSING}


def test_a_word_of_a_category_is_that_word_and_not_missing() -> None:
    column = Column("a", codes=(("none", 0.0), ("-", 1.0), ("x", 2.0)))
    cells, wrong = Study((column,), "label", (("0",), ("1",))).cells(["None", "-", "x", "NA"], column)
    np.testing.assert_array_equal(cells, [0.0, 1.0, 2.0, math.nan])
    assert not wrong


# ---------------------------------------------------------------------- the first line


def test_columns_may_be_named_by_codes(table: Write) -> None:
    names = (*CODES, "Inf", "NaN")
    lines = [",".join([*names, "label"]), *(f"{row},{row + 1},3,4,5,6,{row % 2}" for row in range(6))]
    part = load_site(table("\n".join(lines) + "\n", holdout_share=0.0), 0, 1)
    assert part.features == tuple(sorted(names))
    assert len(part.train) == 6


@pytest.mark.parametrize(
    "rows",
    [
        ["63,1,0", "41,0,1", "50,1,0"],
        ["p17,63,1", "p18,41,0", "p19,50,1"],
        ["2020-01-01,63,yes", "2021-02-03,41,no", "2020-04-05,7,yes"],
        ["63,,0", "41,1,1", "50,0,0"],
    ],
)
@pytest.mark.parametrize("name", ["1", "label"])
def test_a_first_line_of_values_is_found_out(table: Write, rows: list[str], name: str) -> None:
    with pytest.raises(DataError, check=has(key="header")):
        load_site(table("\n".join(rows) + "\n", label=name), 0, 1)


# ---------------------------------------------------------------------- a label with commas, end to end


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose label's name has commas in it, and whose features are named by numbers."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((90, len(CODES)))
    columns: dict[str, Sequence[object]] = {name: inputs[:, place].tolist() for place, name in enumerate(CODES)}
    label = (inputs[:, 0] + 0.3 * rng.standard_normal(90) > 0).astype(int).tolist()
    return write_table(tmp_path_factory.mktemp("own") / "data.csv", {**columns, OUTCOME: label})


@pytest.mark.slow
def test_a_label_with_commas_from_the_table_to_the_prediction(tmp_path: Path, patients: Path) -> None:
    keys = {
        "dataset": "table",
        "data-file": str(patients),
        "label": f'"{OUTCOME}"',
        "problem": "bce",
        "sites": 2,
        "algorithm": "fedavg",
        "model": "linear",
        "rounds": 3,
        "workers": 1,
        "thin-share": 0.0,
        "runs-dir": str(tmp_path / "runs"),
    }
    result = simulate(keys, quiet=True)
    assert result.metrics[-1]["central"]["auroc"] > 0.8
    assert f"column {OUTCOME}" in write_report(result.folder).read_text(encoding="utf-8")
    model = TrainedModel.read(result.folder)
    assert model.model_schema.features == tuple(sorted(CODES))
    with patients.open(newline="", encoding="utf-8") as stream:
        lines = [[value for name, value in line.items() if name != OUTCOME] for line in csv.DictReader(stream)]
    unlabelled = tmp_path / "new.csv"  # all names are numbers, and they are the model's
    unlabelled.write_text("\n".join(map(",".join, [CODES, *lines])), encoding="utf-8")
    for file in (patients, unlabelled):
        predict(model, file, tmp_path / f"{file.stem}-scores.csv")
    scores = [pd.read_csv(tmp_path / f"{name}-scores.csv")["score"].tolist() for name in ("data", "new")]
    assert scores[0] == scores[1]


def test_a_label_with_commas_at_a_hospital(tmp_path: Path, patients: Path) -> None:
    """Which the hospital calls so itself, among several labels too."""
    nodes = [{"data-dir": str(patients.parent), "label": f'"{OUTCOME}"', "site": site} for site in ("a", "b", "c")]
    common = {"problem": "bce", "algorithm": "fedavg", "model": "linear", "rounds": 1}
    assert run_at(site_job(tmp_path / "one", label="label", **common), nodes).metrics
    nodes = [{**node, "label": f'"{OUTCOME}", b'} for node in nodes]
    frame = pd.read_csv(patients)
    folder = write_table(tmp_path / "two" / "data.csv", {**frame, "b": frame[OUTCOME]}).parent
    nodes = [{**node, "data-dir": str(folder)} for node in nodes]
    job = site_job(tmp_path / "two", label=f'"{OUTCOME}",b', uncertain=f'"{OUTCOME}"=ones,zeros', **common)
    assert job.labels.names == (OUTCOME, "b")
    assert job.labels.uncertain == ("ones", "zeros")
    assert run_at(job, nodes).metrics


def test_without_quotes_the_message_says_them(patients: Path) -> None:
    keys: dict[str, Value] = {"dataset": "table", "data-file": str(patients), "label": OUTCOME, "problem": "bce"}
    written = f"""label = '"{OUTCOME}"'"""
    with pytest.raises(DataError, check=has(written, key="label")):
        load_site(RunConfig.parse({**keys, "algorithm": "fedavg"}).data(), 0, 2)
    with pytest.raises(ConfigError, check=has(written)):
        RunConfig.parse({**keys, "problem": "partial-auc"})


FIRST = '"' + OUTCOME.partition(",")[0]  # up to its comma


@pytest.mark.parametrize(
    ("label", "name"), [(f'"{OUTCOME}', FIRST), (f'"{OUTCOME}" x', f'"{OUTCOME}" x'), (f'a,"{OUTCOME}', FIRST)]
)
def test_quotes_that_do_not_end_are_refused(label: str, name: str) -> None:
    with pytest.raises(ConfigError, check=has(repr(name), keys=["label"])):
        RunConfig.parse({"dataset": "table", "data-file": "x.csv", "label": label})


@given(st.lists(st.text('ab ,"=(', min_size=1).map(str.strip).filter(bool), min_size=1, max_size=4))
def test_every_name_can_be_written(names: list[str]) -> None:
    assert split_names(as_label(names)) == tuple(names)
