"""Separators and decimal marks are found and said, wherever a table is read; what is unclear is refused."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch

from edelweiss.config.study import parse
from edelweiss.datasets import DataError
from edelweiss.datasets.data_summary import DataSummary
from edelweiss.datasets.model_schema import ModelSchema
from edelweiss.datasets.site import formats, read_site
from edelweiss.datasets.site.header import START
from edelweiss.datasets.site.inference_input import InferenceTable
from edelweiss.datasets.source import Source
from edelweiss.datasets.sources.table import read_grouped
from tests.said import has

T = TypeVar("T")

HEADER = ["patient", "crp", "age", "label"]
ROWS = [[f"p{n}", f"{n / 8:.3f}", str(20 + n), str(n % 2)] for n in range(0, 60, 3)]
STUDY = {
    "file": "data.*",
    "patient": "patient",
    "label": {"column": "label", "negative": ["0"], "positive": ["1"]},
    "columns": {"age": {}, "crp": {}},
}


def table(mark: str, decimal: str, crp: list[str] | None = None) -> str:
    rows = [list(row) for row in ROWS]
    for row, value in zip(rows, crp or [], strict=False):
        row[1] = value
    lines = [HEADER, *([cell.replace(".", decimal) for cell in row] for row in rows)]
    return "".join(mark.join(f'"{cell}"' if mark in cell else cell for cell in line) + "\n" for line in lines)


def site(folder: Path, text: str) -> Source:
    (folder / "data.csv").write_text(text)
    return read_site(str(folder), "label", True, patient=None)


def same(first: Source, second: Source) -> bool:
    assert first.patient_ids is not None
    assert second.patient_ids is not None
    inputs = torch.equal(first.inputs, second.inputs) and np.array_equal(first.classes, second.classes)
    return inputs and bool((first.patient_ids == second.patient_ids).all())


@pytest.mark.parametrize(("mark", "decimal"), [(mark, decimal) for mark in ";\t|" for decimal in ".,"] + [(",", ".")])
def test_a_table_is_the_same_however_it_is_separated(tmp_path: Path, mark: str, decimal: str) -> None:
    plain = site(tmp_path, table(",", "."))
    assert not any("separated" in note for note in plain.notes)
    text = table(mark, decimal)
    found = site(tmp_path, text)
    assert same(found, plain)
    ordinary = (mark, decimal) == (",", ".")
    assert any("separated" in note for note in found.notes) == (not ordinary)
    described = read_site(str(tmp_path), "", True, study=parse("study", STUDY))
    assert same(described, plain)
    assert any("separated" in note for note in described.notes) == (not ordinary)
    told = parse("study", STUDY | {"delimiter": mark, "decimal": decimal})
    assert same(read_site(str(tmp_path), "", True, study=told), plain)
    grouped = read_grouped(str(tmp_path / "data.csv"), "label", True, "", None)
    assert torch.equal(grouped.inputs, plain.inputs)
    for study in (None, parse("study", STUDY)):
        meaning = ModelSchema(features=("age", "crp"), label="label", study=study)
        new = InferenceTable(tmp_path / "data.csv", meaning, DataSummary(shape=(2,)))
        assert torch.equal(torch.cat([chunk.inputs for chunk in new.chunks()]), plain.inputs)
        assert any("separated" in note for note in new.notes) == (not ordinary)
    (tmp_path / "data.csv").rename(tmp_path / "own.csv")
    (tmp_path / "data.csv.gz").write_bytes(gzip.compress(text.encode("utf-16")))
    assert same(read_site(str(tmp_path), "label", True, patient=None), plain)


@pytest.mark.parametrize(
    ("crp", "mend"),
    [
        (["1,234", "2,345", "12,001"], 'decimal = ","'),  # decimals or thousands
        (["1.234", "2.345", "12.001"], 'decimal = "."'),
        (["1,5", "1.5", "2"], "drop"),  # of two countries
    ],
)
@pytest.mark.parametrize("mark", [";", "\t"])
def test_an_unclear_decimal_mark_is_refused_with_the_line_that_says_it(
    tmp_path: Path, mark: str, crp: list[str], mend: str
) -> None:
    text = table(mark, ".", crp + ["7"] * (len(ROWS) - len(crp)))
    with pytest.raises(DataError) as told:
        site(tmp_path, text)
    assert "'crp'" in str(told.value)
    assert mend in str(told.value)
    assert "crp" not in told.value.public
    if mend != "drop":
        study = parse("study", STUDY | {"decimal": crp[0][1]})
        found = read_site(str(tmp_path), "", True, study=study)
        assert found.inputs[0, found.features.index("crp")] == pytest.approx(1.234)
        other = parse("study", STUDY | {"decimal": ",."[crp[0][1] == ","]})
        with pytest.raises(DataError):  # as the other it is no number, and never 1234
            read_site(str(tmp_path), "", True, study=other)


@pytest.mark.parametrize("mark", [";", ","])
def test_thousands_are_no_decimals(tmp_path: Path, mark: str) -> None:
    """Where the table has decimal points, 1,234 is no number."""
    with pytest.raises(DataError, check=has("'1,234'", key="crp", row=1)):
        site(tmp_path, table(mark, ".", ["1,234", "0.5", "2"]))


def test_a_number_of_the_other_kind_far_below_is_refused(tmp_path: Path) -> None:
    head, *rows = table(";", ",").splitlines()
    text = "\n".join([head, *(rows * (START // 100)), "p;1.234;50;1"])
    assert len(text) > 2 * START
    with pytest.raises(DataError, check=has("'1.234'", key="decimal")):
        site(tmp_path, text)
    with pytest.raises(DataError, check=has("'1.234'", key="decimal")):
        read_site(str(tmp_path), "", True, study=parse("study", STUDY))


def test_words_with_commas_stay_words(tmp_path: Path) -> None:
    """Only numbers have a decimal mark."""
    study = parse("study", STUDY | {"columns": {"crp": {"codes": ["a, b", "1,2 or 3"]}, "age": {}}})
    found = site_by(tmp_path, table(";", ".", ["a, b", "1,2 or 3"] * 10), study)
    assert set(found.inputs[:, found.features.index("crp")].tolist()) == {0, 1}


def site_by(folder: Path, text: str, study: object) -> Source:
    (folder / "data.csv").write_text(text)
    return read_site(str(folder), "", True, study=study)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["by itself", "by a study", "by groups"])
def test_a_table_is_decoded_once_and_tokenised_once(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.csv").write_text(table(";", ","))
    done = Counter[str]()

    def counted(name: str, do: Callable[..., T]) -> Callable[..., T]:
        def counting(*given: object, **named: object) -> T:
            done[name] += 1
            return do(*given, **named)

        return counting

    monkeypatch.setattr(formats, "survey", counted("decoded", formats.survey))
    monkeypatch.setattr(formats, "uniform", counted("tokenised", formats.uniform))
    match how:
        case "by itself":
            found = read_site(str(tmp_path), "label", True, patient=None)
        case "by a study":
            found = read_site(str(tmp_path), "", True, study=parse("study", STUDY))
        case _:
            found = read_grouped(str(tmp_path / "data.csv"), "label", True, "", None)
    assert done == {"decoded": 1, "tokenised": 1}
    assert any("separated" in note for note in found.notes), "what was found on the way is said"
