"""A study file is checked before it goes out: all contradictions at once, doubts, and data that do not fit."""

from pathlib import Path

import pytest

from edelweiss.config.study_check import Line, check
from edelweiss.lab.cli import main

GOOD = """\
patient = "pid"
missing = ["NA", "-9"]
date-format = "%d/%m/%Y"
index-date = "admitted"
[label]
column = "died"
negative = ["0"]
positive = ["1"]
[[leave-out]]
column = "age"
below = 18
[columns.age]
unit = "years"
range = [0, 120]
[columns.crp]
unit = "mg/l"
range = [0, 500]
words = { "<5" = 2.5 }
[columns.ward]
codes = ["icu", "general"]
[columns.born]
before-index = "days"
range = [0, 50000]
"""
ROWS = ["pid,died,age,crp,ward,born,admitted"]
WARDS = ("icu", "general")
ROWS += [
    f"{n},{n * n // 5 % 2},{18 + 3 * n % 60},{7 * n % 41},{WARDS[n % 3 // 2]},1/2/{1930 + 7 * n % 50},3/4/2020"
    for n in range(60)
]


def found(level: str, *edits: tuple[str, str]) -> list[Line]:
    text = GOOD
    for before, after in edits:
        assert before in text
        text = text.replace(before, after)
    lines, file = check(text.encode())
    assert (file is None) == any(line.level == "error" for line in lines)
    return [line for line in lines if line.level == level]


def test_a_good_file_has_no_doubts_and_says_what_doctor_asks() -> None:
    assert not found("error")
    assert not found("warning")
    said = " ".join(line.text for line in found("ok"))
    assert all(name in said for name in ("pid", "died", "age", "crp", "ward", "born", "admitted"))


CONTRADICTIONS = [
    ("patient = ", 'one-row = "last"\n# ', "one-row"),
    ('"pid"', '"died"', "patient"),
    ("[columns.ward]", "[columns.age]\n[columns.ward]", "twice"),
    ("[columns.ward]", "[columns.died]\n[columns.ward]", "died"),
    ("[0, 120]", "[120, 0]", "columns.age.range"),
    ('codes = ["icu", "general"]', 'codes = ["icu", "general"]\nrange = [0, 1]', "columns.ward"),
    ('codes = ["icu", "general"]', 'codes = ["icu", ["general", "ICU"]]', "columns.ward.codes"),
    ('"<5" = 2.5', '"<5" = -2', "columns.crp.words"),
    ('words = { "<5" = 2.5 }', 'words = { "<5" = 2.5 }\nmissing = ["<5"]', "columns.crp"),
    ("%d/%m/%Y", "%d/%Y", "date-format"),
    ("%d/%m/%Y", "DD/MM", "date-format"),
    ('index-date = "admitted"\n', "", "index-date"),
    ("below = 18", "", "leave-out"),
    ("below = 18", "below = 18\nabove = 12", "leave-out"),
    ("below = 18", "below = 140", "leave-out"),
    ('column = "age"\nbelow = 18', 'column = "died"\nvalues = ["1"]', "leave-out"),
    ('column = "died"', 'column = "FILL IN"', "FILL IN"),
    ('positive = ["1"]', 'positive = ["FILL IN TOO"]', "FILL IN"),
    ("[label]", "# DECIDE: which unit?\n[label]", "which unit"),
    ("range", "rnage", "rnage"),
    ("[label]", "[label", "TOML"),
]


@pytest.mark.parametrize(("before", "after", "named"), CONTRADICTIONS)
def test_a_contradiction_is_an_error_that_names_it(before: str, after: str, named: str) -> None:
    assert any(named in line.text for line in found("error", (before, after)))


def test_all_contradictions_come_at_once() -> None:
    edits = [("[0, 120]", "[120, 0]"), ("%d/%m/%Y", "%d/%Y"), ("[columns.ward]", "[columns.age]\n[columns.ward]")]
    said = " ".join(line.text for line in found("error", *edits))
    assert all(named in said for named in ("columns.age.range", "date-format", "twice"))


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ('patient = "pid"\n', "", "patient"),
        ('unit = "years"\n', "", '"age"'),
        ("range = [0, 500]\n", "", '"crp"'),
        ('"-9"', '"99"', "columns.age"),
        ("range = [0, 500]", 'range = [0, 500]\nmissing = ["499"]', "columns.crp"),
        ("range = [0, 500]", "range = [0, 500]\nbands = [10, 600]", "columns.crp.bands"),
        ("range = [0, 500]", "range = [0, 500]\nmean = 900\ndeviation = 10", "columns.crp.mean"),
        ('"<5"', '"na"', "columns.crp.words"),
        ('["icu", "general"]', '["icu", "NA"]', "columns.ward.codes"),
        ('["icu", "general"]', '[["icu", "general"]]', "columns.ward.codes"),
        ("[columns.ward]", '[columns.Age]\nunit = "a"\nrange = [0, 9]\n[columns.ward]', '"Age"'),
        ("[columns.ward]", "[columns.patient_id]\nrange = [0, 1]\n[columns.ward]", '"patient_id"'),
        ("%d/%m/%Y", "%d/%m/%y", "date-format"),
        ('date-format = "%d/%m/%Y"\n', "", '"born"'),
    ],
)
def test_a_doubt_is_a_warning_that_names_it(before: str, after: str, named: str) -> None:
    assert not found("error", (before, after))
    assert any(named in line.text for line in found("warning", (before, after)))


def test_data_are_read_as_the_hospitals_read_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, good, folder = tmp_path / "study.toml", tmp_path / "good.csv", tmp_path / "site"
    study.write_text(GOOD)
    good.write_text("\n".join(ROWS))
    folder.mkdir()
    (folder / "data.csv").write_text(
        "\n".join([*ROWS, "61,1,40,lots,hall,1/2/1950,3/4/2020", "62,7,40,1,icu,1/2/1950,3/4/2020"])
    )
    assert main(["study", "check", str(study), str(good)]) == 0
    capsys.readouterr()
    assert main(["study", "check", str(study), str(good), str(folder)]) == 1
    errors = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error")]
    assert [[word for word in ("'lots'", "'hall'", "'7'") if word in line] for line in errors] == [
        ["'lots'"],
        ["'hall'"],
        ["'7'"],
    ]
    assert all("data.csv" in line and "row 6" in line for line in errors)
    assert 'words = { "lots" = NUMBER }' in errors[0]  # a line of a study file, which would mend it
    assert main(["study", "check", str(study), str(tmp_path / "none.csv")]) == 1
    study.write_text(GOOD.replace("[0, 120]", "[120, 0]"))
    assert main(["study", "check", str(study), str(good)]) == 2
    assert main(["study", "check", str(tmp_path / "none.toml")]) == 2
    assert main(["study", "check", str(folder)]) == 2
