"""What a study file makes of columns and rows: categories, words, dates, rules, one row of each patient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edelweiss.common import ConfigError
from edelweiss.config.study import parse
from edelweiss.datasets.data_summary import DataSummary
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.facts import columns_hash
from edelweiss.datasets.model_schema import ModelSchema
from edelweiss.datasets.site import read_site
from edelweiss.datasets.site.inference_input import InferenceTable
from edelweiss.datasets.source import Source
from tests.said import has

LABEL = {"column": "dead", "negative": ["no"], "positive": ["yes"]}
COLUMNS = {
    "born": {"before-index": "years", "range": [0, 120]},
    "seen": {"before-index": "days"},
    "crp": {"words": {"< 5": 2.5, ">300": 300}},
    "blood": {"codes": ["A", "B", ["0", "zero"]]},
    "stage": {"codes": {"I": 1, "II": 2, "III": 3}, "ordinal": True},
    "smokes": {"codes": ["no", "yes"]},
}
STUDY = {
    "patient": "id",
    "index-date": "admitted",
    "drop": ["note"],
    "leave-out": [{"column": "dead", "values": ["", "invalid"]}, {"column": "born", "below": 18}],
    "label": LABEL,
    "columns": COLUMNS,
}
TABLE = """id,admitted,born,seen,crp,blood,stage,smokes,dead,note
p1,2020-06-30,1.7.1960,2020-06-20,<5,A,II,yes,no,x
p1,2019-06-30,1960-07-01,2019-06-30,>  300,zero,III,no,yes,y
p2,2020-01-01,2010-01-01,nonsense,1,A,I,no,yes,a child
p3,2020-01-01,1950-01-01,,17.5,,I,no,invalid,z
p4,2020-01-01,1950-01-01,,17.5,,I,,no,z
"""


def read(folder: Path, text: str = TABLE, **changed: object) -> Source:
    (folder / "data.csv").write_text(text)
    return read_site(str(folder), "", True, study=parse("study.toml", STUDY | changed))


def column(source: Source, name: str) -> list[float]:
    return source.inputs[:, source.features.index(name)].tolist()


def test_columns_become_what_they_mean(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert sorted(found.features) == ["blood = 0", "blood = 1", "blood = 2", "born", "crp", "seen", "smokes", "stage"]
    assert column(found, "blood = 0")[:2] == [1, 0]
    assert column(found, "blood = 2")[:2] == [0, 1]
    assert all(np.isnan(column(found, f"blood = {code}")[2]) for code in range(3)), "missing is no category"
    assert column(found, "stage") == [2, 3, 1]
    assert column(found, "smokes")[:2] == [1, 0]
    assert column(found, "crp") == [2.5, 300, 17.5]
    assert column(found, "seen")[:2] == [10, 0]
    np.testing.assert_allclose(column(found, "born"), [60, 59, 70], atol=0.01)
    assert found.classes.tolist() == [0, 1, 0]


def test_rows_left_out_are_counted_and_their_values_are_not_judged(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert [(change.count, change.of) for change in found.changes] == [(1, 5), (1, 5)]
    assert len(found.notes) == 2
    with pytest.raises(DataError, check=has("nonsense", key="seen", row=3)):
        read(tmp_path, **{"leave-out": [{"column": "dead", "values": ["invalid"]}]})
    with pytest.raises(DataError, check=has("'grey'", key="blood", row=5)):  # a row's number is the file's
        read(tmp_path, TABLE.replace("17.5,,I,,", "17.5,grey,I,,"))
    with pytest.raises(DataError, check=has(key="leave-out")):
        read(tmp_path, **{"leave-out": [{"column": "born", "above": 1}]})


def test_what_is_not_read_is_said_unless_the_study_drops_it(tmp_path: Path) -> None:
    assert not [note for note in read(tmp_path).notes if "'note'" in note]
    assert [note for note in read(tmp_path, drop=[]).notes if "'note'" in note]


@pytest.mark.parametrize(
    ("one_row", "crp", "label"), [("first", 300, 1), ("last", 2.5, 0), ("mean", 151.25, 1), ("max", 300, 1)]
)
def test_one_row_of_each_patient(tmp_path: Path, one_row: str, crp: float, label: int) -> None:
    """First and last are by the index date: the table has the later row first."""
    found = read(tmp_path, **{"one-row": one_row})
    assert column(found, "crp") == [crp, 17.5]
    assert found.classes.tolist() == [label, 0]
    assert found.changes[-1].count == 1


def test_first_is_that_of_the_table_without_a_column_of_dates(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        **{"one-row": "first", "index-date": "2021-01-01", "leave-out": STUDY["leave-out"][:1]},
        columns={"crp": COLUMNS["crp"]},
    )
    assert column(found, "crp") == [2.5, 1, 17.5]


def test_dates_in_another_form(tmp_path: Path) -> None:
    text = TABLE.replace("2020-06-30,1.7.1960,2020-06-20", "06/30/2020,07/01/1960,06/20/2020").splitlines()[:2]
    with pytest.raises(DataError, check=has("date-format", key="admitted", row=1)):
        read(tmp_path, "\n".join(text) + "\n")
    assert column(read(tmp_path, "\n".join(text) + "\n", **{"date-format": "%m/%d/%Y"}), "seen") == [10]


def test_new_patients_are_read_in_the_same_way(tmp_path: Path) -> None:
    study = parse("study.toml", STUDY)
    features = tuple(sorted(study.features()))
    summary = DataSummary(shape=(len(features),), columns=columns_hash(features))
    schema = ModelSchema(features=features, study=study, label="dead", classes=study.classes)
    again = ModelSchema.of_file(schema.facts() | summary.facts(), summary)
    assert again == schema, "the model's file carries the whole meaning"
    assert schema.facts()["format"] == 4
    lines = [",".join(line.split(",")[:8]) for line in TABLE.splitlines() if "nonsense" not in line]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    table = InferenceTable(tmp_path / "new.csv", again, summary)
    assert table.kept == ("id", "admitted")
    (chunk,) = table.chunks()
    trained = read(tmp_path)
    np.testing.assert_array_equal(chunk.inputs[[0, 1, 3]], trained.inputs)
    (tmp_path / "new.csv").write_text("\n".join(lines).replace("born", "birth") + "\n")
    with pytest.raises(DataError, check=has(key="born")):
        InferenceTable(tmp_path / "new.csv", again, summary)


def test_a_file_of_an_older_release_keeps_its_numbers() -> None:
    codes = [["x", 1], ["y", 2], ["z", 3]]
    study = {"columns": [{"name": "a", "codes": codes}], "label": "y", "classes": [["0"], ["1"]]}
    old = {"missing": "mean", "label": "y", "study": study}
    schema = ModelSchema.of_file({"data": old}, DataSummary(shape=(1,)))
    assert schema.study
    assert schema.study.features() == ["a"]


@pytest.mark.parametrize(
    ("changed", "keys", "said"),
    [
        ({"leave-out": [{"colum": "dead", "values": ["x"]}]}, "leave-out.0.column leave-out.0.colum", "2"),
        ({"one-row": "first", "patient": ""}, "one-row", "patient"),
        ({"index-date": ""}, "columns.born.before-index columns.seen.before-index", "index-date"),
        ({"index-date": "2020-02-31"}, "index-date", "'2020-02-31'"),
        ({"drop": ["crp"]}, "drop", "'crp'"),
        ({"leave-out": [{"column": "crp"}]}, "leave-out", "'crp'"),
        ({"columns": COLUMNS | {"crp": {"range": [0, 10], "words": {">10": 11}}}}, "columns.crp.words", "'>10'"),
        ({"columns": COLUMNS | {"crp": {"ordinal": True}}}, "columns.crp.ordinal", "codes"),
        ({"columns": COLUMNS | {"blood = 1": {}}}, "columns", "'blood = 1'"),
        ({"subgroups": ["blood"], "one-row": "mean"}, "subgroups", "one-row = 'mean'"),
    ],
)
def test_contradictions_are_refused(changed: dict[str, object], keys: str, said: str) -> None:
    with pytest.raises(ConfigError, check=has(said, keys=keys.split())):
        parse("study.toml", STUDY | changed)


def test_several_visits_without_a_patient_column_are_a_doubt(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    visits = np.repeat(np.arange(400), random.integers(1, 6, 400))
    static = np.column_stack(
        [random.integers(18, 95, 400), random.normal(170, 9, 400).round(), random.integers(0, 2, 400)]
    )
    rows = np.column_stack(
        [static[visits], random.normal(120, 15, len(visits)).round(), random.integers(0, 2, len(visits))]
    )
    for order, doubts in ((np.arange(len(rows)), 1), (random.permutation(len(rows)), 0), (np.lexsort(rows.T[:2]), 0)):
        text = "\n".join(",".join(map(str, row)) for row in rows[order])
        (tmp_path / "data.csv").write_text(f"age,height,sex,pressure,label\n{text}\n")
        found = [str(doubt) for doubt in read_site(str(tmp_path), "label", True).warnings if "visits" in str(doubt)]
        assert len(found) == doubts
