"""Hospitals' drafts become one study file, which reads each table, and what contradicts is for a person to decide."""

from pathlib import Path

import pytest

from edelweiss.common import ConfigError
from edelweiss.common.files import toml_in
from edelweiss.config.conversions import CONVERSIONS, Conversion
from edelweiss.config.study import parse
from edelweiss.config.study_merge import DECIDE, Merged, merge
from edelweiss.datasets.site.draft import draft
from edelweiss.lab.cli import main

HOSPITAL = """\
file = "data.csv"
patient = "pid"
drop = [
    "name",  # free text or identifiers: it has more than 20 words
]
[label]
column = "died"
negative = ["0"]
positive = ["1"]
[columns.age]
unit = "years"
# range = [20, 90]  # most are within; set what is valid
[columns.crea]
unit = "mg/dl"
range = [0.5, 4]
words = { "<0.6" = 0.5 }
missing = ["-9"]
[columns.ward]
codes = ["icu", "general"]
[columns.sex]
codes = { f = 0, m = 1 }
"""


def merged(*edits: str) -> Merged:
    """Merge the file with itself, edited: "before -> after"."""
    other = HOSPITAL
    for edit in edits:
        before, after = edit.split(" -> ")
        assert before in other
        other = other.replace(before, after)
    return merge({"a.toml": HOSPITAL.encode(), "b.toml": other.encode()})


def test_files_that_agree_are_one() -> None:
    found = merged()
    assert not found.decisions
    assert DECIDE not in found.text.partition("\n")[2]
    assert parse("merged", toml_in(found.text.encode())) == parse("a", toml_in(HOSPITAL.encode()))


@pytest.mark.parametrize(
    ("where", "edit"),
    [
        ("columns.age", 'unit = "years" -> unit = "months"'),
        ("columns.age", "[20, 90] -> [240, 1080]"),
        ("columns.age", "[20, 90] -> [91, 99]"),
        ("columns.age", 'unit = "years" -> codes = ["young", "old"]'),
        ("columns.age", "[columns.age] -> [columns.Age]"),
        ("columns.crea", "[0.5, 4] -> [0.5, 5]"),
        ("columns.crea", '"<0.6" = 0.5 -> "<0.6" = 0.6'),
        ("columns.crea", 'missing = ["-9"] -> missing = ["1"]'),
        ("columns.ward", '["icu", "general"] -> [["icu", "general"], "surgery"]'),
        ("columns.ward", '["icu", "general"] -> ["its", "normal"]'),
        ("columns.ward", '["icu", "general"] -> ["icu", "surgery"]\nmissing = ["general"]'),
        ("columns.sex", "f = 0, m = 1 -> f = 1, m = 0"),
        (
            "columns.name",
            '    "name",  # free text or identifiers: it has more than 20 words\n]\n -> ]\n[columns.name]\n',
        ),
        ("label", 'column = "died" -> column = "outcome"'),
        ("label", 'negative = ["0"]\npositive = ["1"] -> negative = ["1"]\npositive = ["0"]'),
        ("label", 'negative = ["0"]\npositive = ["1"] -> classes = [["0"], ["1"], ["2"]]'),
        ("patient", 'patient = "pid" -> patient = "mrn"'),
        ("patient", 'patient = "pid"\n -> '),
        ("one-row", 'patient = "pid" -> patient = "pid"\none-row = "last"'),
        ("sheet", 'file = "data.csv" -> file = "data.csv"\nsheet = "Tabelle1"'),
        ("leave-out", '[label] -> [[leave-out]]\ncolumn = "age"\nbelow = 18\n[label]'),
    ],
)
def test_a_contradiction_is_for_a_person_to_decide(where: str, edit: str) -> None:
    found = merged(edit)
    assert [each for each in found.decisions if each.startswith(f"{where}:")], found.text
    assert found.text.count(f"# {DECIDE}: ") == len(found.decisions)
    parse("merged", toml_in(found.text.encode()))  # it reads as a study file all the same


@pytest.mark.parametrize("one", CONVERSIONS, ids=lambda one: one.units)
def test_ranges_that_differ_as_two_units_do_are_doubted(one: Conversion) -> None:
    """Kilograms and pounds overlap, and their ends differ by less than a factor of three."""
    low, high = (float(f"{one.factor * number + one.offset:.2g}") for number in (38.0, 41.0 if one.offset else 128.0))
    small = "[38, 41]" if one.offset else "[42, 130]"  # other patients, and rounded
    for first, second in ((small, f"[{low:g}, {high:g}]"), (f"[{low:g}, {high:g}]", small)):
        found = merge(
            {
                "a.toml": HOSPITAL.replace("[20, 90]", first).encode(),
                "b.toml": HOSPITAL.replace("[20, 90]", second).encode(),
            }
        )
        [doubt] = found.decisions
        assert doubt.startswith("columns.age:")
        assert all(text in doubt for text in ("a.toml", "b.toml", first, second, one.units, f"{one.factor:g}"))


@pytest.mark.parametrize("others", ["[18, 95]", "[40, 95]", "[20, 130]", "[0, 90]", "[30, 160]"])
def test_other_patients_are_no_other_unit(others: str) -> None:
    assert not merged(f"[20, 90] -> {others}").decisions


def test_categories_and_labels_at_one_site_only_are_taken_and_said() -> None:
    found = merged(
        '["icu", "general"] -> ["icu", "general", "palliative"]', 'positive = ["1"] -> positive = ["1", "dead"]'
    )
    assert not found.decisions
    assert not merged('file = "data.csv" -> file = "data.csv"\ndelimiter = ";"').decisions  # each hospital's is found
    study = parse("merged", toml_in(found.text.encode()))
    assert {word for column in study.columns for word, _ in column.codes} >= {"icu", "general", "palliative"}
    assert study.classes == (("0",), ("1", "dead"))
    assert [line for line in found.text.splitlines() if line.startswith("#") and "palliative" in line]


def test_the_drafts_of_two_tables_become_a_file_that_reads_both(tmp_path: Path) -> None:
    drafts = {}
    for name, wards in (("a", ("icu", "general")), ("b", ("icu", "surgery"))):
        rows = [f"{20 + 7 * n % 60},{wards[n % 2]},{7 * n % 11},{(n * n // 3) % 2}" for n in range(100)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.csv").write_text("\n".join(["age,ward,crp,died", *rows]))
        drafts[name] = draft(tmp_path / name / "data.csv", "died").encode()
        (tmp_path / f"{name}.toml").write_bytes(drafts[name])
    files = [str(tmp_path / f"{name}.toml") for name in drafts]
    assert main(["study", "merge", *files, "--out", str(tmp_path / "study.toml")]) == 0
    study = parse("merged", toml_in((tmp_path / "study.toml").read_bytes()))
    for name in drafts:
        assert len(study.read(tmp_path / name / "data.csv").frame) == 100
    assert main(["study", "merge", *files, "--out", str(tmp_path / "study.toml")]) == 1  # never over another
    assert "age" in merge(drafts).text


def test_files_that_cannot_be_merged(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(HOSPITAL)
    bad.write_text(HOSPITAL.replace("[0.5, 4]", "[4, 0.5]"))
    out = ["--out", str(tmp_path / "out.toml")]
    assert main(["study", "merge", str(good), *out]) == 2
    assert main(["study", "merge", str(good), str(good), *out]) == 2
    assert main(["study", "merge", str(good), str(bad), *out]) == 2
    assert main(["study", "merge", str(good), str(tmp_path / "none.toml"), *out]) == 2
    with pytest.raises(ConfigError) as caught:
        merge({"a": b"= 1", "b": bad.read_bytes(), "c": HOSPITAL.encode()})
    assert {problem.partition(":")[0] for problem in caught.value.problems} == {"a", "b"}
    other = HOSPITAL
    for name in ("age", "crea", "ward", "sex"):
        other = other.replace(f"[columns.{name}]", f"[columns.zz{name[::-1]}]")
    with pytest.raises(ConfigError):
        merge({"a": HOSPITAL.encode(), "b": other.encode()})
    assert not (tmp_path / "out.toml").exists()
