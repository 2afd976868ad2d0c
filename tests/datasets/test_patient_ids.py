"""One patient in several exports of one system: by the stated rule, and never two patients in silence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edelweiss.client_app.policy.records import Records
from edelweiss.datasets import DataConfig, DataError, SiteData, load_site
from edelweiss.datasets.patient_ids import is_rounded, patient_key, spelt_apart
from edelweiss.datasets.site.study import Column, Study
from tests.said import has

if TYPE_CHECKING:
    from edelweiss.client_app.policy.records import Rows

MANY = 60
TEXT = st.text("0123456789aAzZäÄ. -+eE/_", min_size=1, max_size=8)


@pytest.mark.parametrize(
    "spellings",
    [
        ("123", "00123", "123.0", " 123 ", "0123.00", "\t123\u00a0"),
        ("P-123", "p-123", " P-123"),
        ("0", "000", "0.0"),
        ("-17", "-017", "-17.0"),
        ("Jose\u0301", "JOS\u00c9", "jos\u00e9"),
        ("12345678901234567", "012345678901234567"),
    ],
)
def test_spellings_of_one_patient(spellings: Sequence[str]) -> None:
    assert len({patient_key(text) for text in spellings}) == 1


def test_different_patients_stay_different() -> None:
    """Even where a float could not tell them apart, or a prefix has a number in it."""
    texts = ["P-7", "P-07", "P7", "7", "-7", "7.5", "7-0", "1e2", "100", "12345678901234567", "12345678901234568", "٧"]
    assert len({patient_key(text) for text in texts}) == len(texts)


@given(TEXT, TEXT)
def test_two_are_one_only_as_the_rule_says(one: str, other: str) -> None:
    """The rule again, in other words: equal without case, or both the same whole number, digit for digit."""
    one, other = one.strip().lower(), other.strip().lower()
    assume(one and other)

    def whole(text: str) -> int | None:
        before, _, after = text.partition(".")
        digits = before.removeprefix("-")
        fits = digits.isdecimal() and ("." not in text or (after and not after.strip("0")))
        return int(digits) if fits else None

    numbers = whole(one), whole(other)
    if None in numbers:
        same = one == other
    else:
        same = numbers[0] == numbers[1] and one.startswith("-") == other.startswith("-")
    assert (patient_key(one) == patient_key(other)) == same


@given(st.integers(0, 10**20), st.integers(0, 10**20))
def test_whole_numbers_are_compared_digit_by_digit(one: int, other: int) -> None:
    assert (patient_key(f"000{one}") == patient_key(f"{other}.0")) == (one == other)


@pytest.mark.parametrize("text", ["1.23457E+11", "1e+17", repr(1.2345678901234567e17), "9007199254740994.0"])
def test_what_a_number_has_rounded_is_found_out(text: str) -> None:
    assert is_rounded(text)


@pytest.mark.parametrize("text", ["12E5", "9007199254740993", "1234567890123456.0", "1.5", "e+5", "P1e+17"])
def test_what_holds_all_digits_is_not(text: str) -> None:
    assert not is_rounded(text)


# ---------------------------------------------------------------------- exports of one system


def rows(count: int = MANY) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"age": rng.normal(60, 9, count).round(3), "died": rng.integers(0, 2, count)})


def export(folder: Path, kind: str, who: Sequence[object], table: pd.DataFrame | None = None) -> DataConfig:
    """Write a hospital's table with these patients, as one system or another does."""
    folder.mkdir(parents=True, exist_ok=True)
    frame = (rows() if table is None else table).assign(pid=list(who))
    if kind == "csv":
        frame.to_csv(folder / "data.csv", index=False)
    elif kind == "xlsx":
        frame.to_excel(folder / "data.xlsx", index=False)
    else:
        frame.to_parquet(folder / "data.parquet")
    return DataConfig(
        dataset="site", data_dir=str(folder), label="died", patient="pid", key="ab" * 32, holdout_share=0.3
    )


def whose(data: SiteData, part: str) -> Rows:
    assert data.patient_ids is not None
    assert data.row_ids is not None
    places = getattr(data, part).rows.numpy()
    return data.patient_ids[places], data.row_ids[places]


NUMBERS = range(1, MANY + 1)
EXPORTS: dict[str, tuple[str, Callable[[int], object]]] = {
    "spreadsheet": ("xlsx", int),
    "padded": ("csv", lambda number: f"{number:06d}"),
    "floats": ("csv", float),
    "spaces": ("csv", lambda number: f" {number} "),
    "integers": ("parquet", int),
    "real": ("parquet", float),
    "text": ("parquet", lambda number: f"{number:09d}"),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_by_another_program_holds_out_the_same_patients(tmp_path: Path, name: str) -> None:
    plain = load_site(export(tmp_path / "plain", "csv", NUMBERS), 0, 1)
    kind, spell = EXPORTS[name]
    other = load_site(export(tmp_path / "other", kind, [spell(number) for number in NUMBERS]), 0, 1)
    assert len(plain.held_out) > 5
    for part in ("train", "held_out"):
        for one, two in zip(whose(plain, part), whose(other, part), strict=True):
            np.testing.assert_array_equal(one, two)
    assert not other.warnings


def test_two_patients_of_one_export_are_never_one_in_silence(tmp_path: Path) -> None:
    data = load_site(export(tmp_path, "csv", ["007", "7", "8", *(f"p{number}" for number in range(MANY - 3))]), 0, 1)
    (doubt,) = data.warnings
    assert "'007' = '7'" in str(doubt)
    assert "007" not in doubt.public
    assert data.patient_ids is not None
    assert len(np.unique(data.patient_ids)) == MANY - 1, "they count as one, so that no one is on both sides"


def test_a_patient_is_not_hidden_behind_another_spelling(tmp_path: Path) -> None:
    """Sums over two exports that differ by one patient would give that one away, whatever program wrote them."""
    table = rows(MANY + 1)
    first = load_site(export(tmp_path / "one", "xlsx", range(1, MANY + 1), table.iloc[:MANY]), 0, 1)
    padded = [f"{number:06d}" for number in range(1, MANY + 2)]
    then = load_site(export(tmp_path / "two", "csv", padded, table), 0, 1)
    records = Records(str(tmp_path / "state"))
    parts = [part for part in ("train", "held_out") if len(whose(first, part)[0]) != len(whose(then, part)[0])]
    assert len(parts) == 1
    records.tell(parts[0], whose(first, parts[0]), "ab" * 32)
    assert records.too_near(parts[0], whose(then, parts[0]), 10, "ab" * 32)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rounded_identifiers_are_refused(tmp_path: Path, kind: str) -> None:
    large = [float(12345678901234567 + number) for number in range(MANY)]
    with pytest.raises(DataError, check=has("('1.23", key="pid", row=1)) as told:
        load_site(export(tmp_path, kind, large), 0, 1)
    assert "1.23" not in told.value.public
    exact = load_site(export(tmp_path / "exact", kind, [12345678901234567 + number for number in range(MANY)]), 0, 1)
    assert exact.patient_ids is not None
    assert len(np.unique(exact.patient_ids)) == MANY


@pytest.mark.parametrize("one_row", ["first", "last", "mean", "max"])
def test_one_row_of_each_patient_is_by_the_same_rule(tmp_path: Path, one_row: str) -> None:
    """Where several spellings might be several patients, their rows are not merged."""
    study = Study((Column("age"),), "died", (("0",), ("1",)), patient="pid", one_row=one_row)  # type: ignore[arg-type]
    (tmp_path / "data.csv").write_text("pid,age,died\n7,60,0\n 7 ,62,1\n8,50,0\n")
    assert len(study.read(tmp_path / "data.csv").frame) == 2
    (tmp_path / "data.csv").write_text("pid,age,died\n7,60,0\n007,62,1\n8,50,0\n")
    with pytest.raises(DataError, check=has("'7' = '007'", "one-row", key="pid")) as told:
        study.read(tmp_path / "data.csv")
    assert "007" not in told.value.public


def test_all_spellings_of_a_patient_are_named() -> None:
    assert spelt_apart(["7", "x", " 7", "X", "07", "8"]) == [("7", "07"), ("x", "X")]
