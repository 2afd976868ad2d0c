"""A study file: hospitals' own tables, each in its own spelling, become the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bin.run import REPO
from edelweiss.common import ConfigError
from edelweiss.config.study import read_study
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.site.study import Study
from edelweiss.datasets.sources.heart_disease import FEATURES, HOSPITALS
from tests.said import has

STUDY = """
delimiter = ";"
decimal = ","
missing = ["k.A."]
patient = "Fall"
[label]
column = "Befund"
negative = ["gesund", 0]
positive = ["krank", "schwer krank"]
[columns.Alter]
unit = "years"
range = [0, 120]
[columns.Geschlecht]
codes = { w = 0, m = 1 }
[columns.Dosis]
missing = ["-1"]
"""
TABLE = """Fall;Befund;Dosis;Geschlecht;Alter;Notiz
p1;gesund;1,5;w;40;am 3.4.2020
p2;Krank;-1,0;M;51;
p3;SCHWER KRANK;,25;k.a.;62;
p4;0;2e1;;k.A.;
"""


def study(folder: Path, text: str = STUDY) -> Study:
    (folder / "study.toml").write_text(text, encoding="utf-8")
    return read_study(str(folder / "study.toml"))


def table(folder: Path, text: str = TABLE) -> Path:
    (folder / "data.csv").write_text(text, encoding="utf-8")
    return folder / "data.csv"


def test_a_table_in_its_own_spelling_becomes_numbers(tmp_path: Path) -> None:
    it, file = study(tmp_path), table(tmp_path)
    assert it.place(str(tmp_path)) == file
    frame = it.read(file).frame
    assert [None if np.isnan(value) else value for value in frame["Alter"]] == [40, 51, 62, None]
    assert [None if np.isnan(value) else value for value in frame["Geschlecht"]] == [0, 1, None, None]
    assert [None if np.isnan(value) else value for value in frame["Dosis"]] == [1.5, None, 0.25, 20]
    assert list(frame["Befund"]) == ["0", "1", "1", "0"]
    assert list(frame["Fall"]) == ["p1", "p2", "p3", "p4"]
    assert "Notiz" not in frame, "what the study does not name is not read"


@pytest.mark.parametrize(
    ("old", "new", "key", "row", "said"),
    [
        ("40", "121", "Alter", 1, "120 years"),
        ("40", "3.4.1980", "Alter", 1, "before-index"),
        ("40", "1980-04-03", "Alter", 1, "before-index"),
        ("1,5", "1.500,5", "Dosis", 1, "','"),
        ("1,5", "1_0", "Dosis", 1, "'1_0'"),
        ("1,5", "inf", "Dosis", 1, "'inf'"),
        (";w;", ";divers;", "Geschlecht", 1, "w, m"),
        ("gesund", "unklar", "Befund", 1, "gesund, 0, krank, schwer krank"),
        ("Alter", "alter", "Alter", None, "'alter'"),
        ("p1;", "p1;;", "", None, "line 2"),
        ("Notiz", "Dosis", "Dosis", None, "Dosis"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, old: str, new: str, key: str, row: int | None, said: str) -> None:
    file = table(tmp_path, TABLE.replace(old, new, 1))
    with pytest.raises(DataError, check=has(file, said, key=key, row=row)) as told:
        study(tmp_path).read(file)
    value = new.strip(";")
    assert value == "alter" or value not in told.value.public, "no value leaves the house"
    names = ("Alter", "Dosis", "Geschlecht", "Befund")
    assert not [name for name in names if name in told.value.public], "nor the name of a column"


def test_all_is_told_at_once(tmp_path: Path) -> None:
    file = table(tmp_path, TABLE.replace("40", "400").replace("gesund", "?").replace(";w;", ";x;"))
    with pytest.raises(DataError) as told:
        study(tmp_path).read(file)
    assert str(told.value).startswith("3 problems")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"Fall;Befund\n", b"\xff\xfe\x00", b'"Fall;Befund\nx'])
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.csv").write_bytes(content)
    with pytest.raises(DataError, check=has(tmp_path / "data.csv")):
        study(tmp_path).read(tmp_path / "data.csv")


def test_each_value_is_in_one_subgroup(tmp_path: Path) -> None:
    text = STUDY.replace("[0, 120]", "[0, 120]\nbands = [50, 65]").replace("w = 0", "w = 0, f = 0")
    it = study(tmp_path, 'subgroups = ["Alter", "Geschlecht"]\n' + text)
    age, sex, _ = it.columns
    parts = age.parted(np.array([[49.5], [50], [64], [65], [np.nan]], np.float32))
    assert {name: mask.nonzero()[0].tolist() for name, mask in parts.items()} == {
        "below 50": [0],
        "50 to 65": [1, 2],
        "65 or more": [3],
        "missing": [4],
    }
    assert list(sex.parted(np.array([[0], [1], [np.nan]], np.float32))) == ["w or f", "m", "missing"]
    assert it.subgroups == ("Alter", "Geschlecht")


def test_one_file_is_read(tmp_path: Path) -> None:
    it = study(tmp_path, 'file = "*.txt"\n' + STUDY)
    with pytest.raises(DataError, check=has(key="data-dir")):
        it.place(str(tmp_path))
    for name in "ab":
        (tmp_path / f"{name}.txt").touch()
    with pytest.raises(DataError, check=has("a.txt, b.txt", key="data-dir")):
        it.place(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "keys", "said"),
    [
        ("nonsense", "", "TOML"),
        ("", "label columns", "2"),
        (STUDY.replace("decimal", "decimals"), "decimals", "'decimal'"),
        (STUDY.replace("unit", "units"), "columns.Alter.units", "'columns.Alter.unit'"),
        (STUDY.replace("[0, 120]", "[1, 1]"), "columns.Alter.range", "[1.0, 1.0]"),
        (STUDY.replace("[0, 120]", "[120, 0]"), "columns.Alter.range", "[120.0, 0.0]"),
        (STUDY.replace('";"', '","'), "delimiter", "','"),
        (STUDY.replace('"krank"', '"Gesund"'), "label", "'gesund'"),
        (STUDY.replace('negative = ["gesund", 0]', ""), "label", "negative"),
        (STUDY.replace('"Fall"', '"Alter"'), "columns", "'Alter'"),
        ('header = ["Alter"]\n' + STUDY, "header", "'Geschlecht', 'Dosis', 'Befund', 'Fall'"),
        (STUDY.replace('";"', '";;"'), "delimiter", "';;'"),
        ('subgroups = ["Alter"]\n' + STUDY, "subgroups", "bands"),
        ('subgroups = ["Alte"]\n' + STUDY, "subgroups", "'Alter'"),
        (STUDY.replace("[0, 120]", "[0, 120]\nmean = 50"), "columns.Alter.mean", "deviation"),
        (STUDY.replace("[0, 120]", "[0, 120]\nmean = 50\ndeviation = 0"), "columns.Alter.deviation", "> 0"),
        (STUDY.replace("[0, 120]", "[0, 120]\nbands = [65, 50]"), "columns.Alter.bands", "[65.0, 50.0]"),
        (STUDY.replace("m = 1 }", "m = 1 }\nbands = [1]"), "columns.Geschlecht.bands", "[1.0]"),
        (STUDY.replace('"Fall"', '"Befund"'), "patient", "'Befund'"),
        (
            'header = ["Fall", "Alter", "Alter", "Geschlecht", "Dosis", "Befund"]\n' + STUDY,
            "header",
            "'Alter'",
        ),
        (STUDY.replace("[0, 120]", '["0", "1_20"]'), "columns.Alter.range.0 columns.Alter.range.1", "'1_20'"),
        (STUDY.replace("w = 0", 'w = "0_1"'), "columns.Geschlecht.codes.w", "'0_1'"),
        (STUDY.replace("w = 0", "w = true"), "columns.Geschlecht.codes.w", "True"),
        (
            STUDY.replace("m = 1 }", 'm = 1 }\nmissing = ["M"]'),
            "columns.Geschlecht",
            "'m'",
        ),
        (STUDY.replace("m = 1 }", "m = 1, W = 1 }"), "columns.Geschlecht.codes", "'w'"),
        ('file = "../payroll/*.csv"\n' + STUDY, "file", "'../payroll/*.csv'"),
    ],
)
def test_a_study_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, keys: str, said: str) -> None:
    with pytest.raises(ConfigError, check=has(said, keys=keys.split(" "))):
        study(tmp_path, text)


@pytest.mark.parametrize("hospital", HOSPITALS)
@pytest.mark.parametrize("header", [True, False])
def test_uci_files_are_read_as_they_are_downloaded(tmp_path: Path, data_root: str, hospital: str, header: bool) -> None:
    """With and without the line of names that some copies have; the numbers are those of an independent reading."""
    file = Path(data_root) / "heart_disease" / f"{hospital}.data"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("age")]
    names = ",".join([*FEATURES, "target"])
    (tmp_path / f"processed.{hospital}.data").write_text("\n".join([names, *lines] if header else lines) + "\n")
    it = read_study(str(REPO / "experiments" / "heart" / "study.toml"))
    frame = it.read(it.place(str(tmp_path))).frame
    expected = np.array([[np.nan if v in ("?", "-9") else float(v) for v in line.split(",")] for line in lines])
    assert np.array_equal(frame["target"].astype(int), expected[:, -1] > 0)
    for place, name in enumerate(FEATURES):
        got = frame[name].to_numpy()
        zero_is_missing = name in ("trestbps", "chol")
        want = np.where(expected[:, place] == 0, np.nan, expected[:, place]) if zero_is_missing else expected[:, place]
        np.testing.assert_array_equal(got, want)
