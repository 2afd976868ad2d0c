"""Tables as hospitals have them: whatever the file's format, the same patients are read; by `predict`, too."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyreadstat
import pytest
import torch

from edelweiss.config import ConfigError
from edelweiss.config.study import parse
from edelweiss.datasets import DataError
from edelweiss.datasets.site import read_site
from edelweiss.datasets.site.draft import draft
from edelweiss.datasets.site.formats import BLANK, CELL, CONVERT, convertible, encoding_of, takes
from edelweiss.datasets.source import Source
from tests.said import has

FRAME = pd.DataFrame({"age": [61, 48, 75, 52], "größe": [1.625, 1.8, np.nan, 1.75], "label": [1, 0, 1, 0]})
LABELS = {"label": [1, 0, 1, 0]}
STUDY = {"label": {"column": "label", "negative": ["0"], "positive": ["1"]}, "columns": {"age": {}, "größe": {}}}


def text(separator: str = ",", decimal: str = ".") -> str:
    return FRAME.to_csv(index=False, sep=separator, decimal=decimal, lineterminator="\n")


def written(how: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "data.csv").write_bytes(text().encode(how))


def spss(folder: Path) -> None:
    pyreadstat.write_sav(FRAME, str(folder / "data.sav"))


FILES: dict[str, Callable[[Path], object]] = {
    "UTF-8": written("utf-8"),
    "UTF-8 with a mark": written("utf-8-sig"),
    "UTF-16": written("utf-16"),
    "Latin-1": written("latin-1"),
    "Windows-1252": written("cp1252"),
    "gzip": lambda folder: (folder / "data.csv.gz").write_bytes(gzip.compress(text().encode())),
    "Excel": lambda folder: FRAME.to_excel(folder / "data.xlsx", index=False),
    "Parquet": lambda folder: FRAME.to_parquet(folder / "data.parquet"),
    "Stata": lambda folder: FRAME.to_stata(folder / "data.dta", write_index=False, version=118),
    "SPSS": spss,
}


def same(first: Source, second: Source) -> bool:
    inputs = torch.equal(torch.nan_to_num(first.inputs, nan=-1), torch.nan_to_num(second.inputs, nan=-1))
    return inputs and first.features == second.features and np.array_equal(first.classes, second.classes)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("plain")
    FILES["UTF-8"](folder)
    return read_site(str(folder), "label", True)


@pytest.mark.parametrize("kind", FILES)
def test_every_format_is_the_same_table(tmp_path: Path, kind: str, plain: Source) -> None:
    FILES[kind](tmp_path)
    read = read_site(str(tmp_path), "label", True)
    assert same(read, plain)
    assert (read.row_ids == plain.row_ids).all(), "a patient is the same one in whatever file"


@pytest.mark.parametrize("kind", FILES)
def test_and_so_it_is_by_a_study_file(tmp_path: Path, kind: str, plain: Source) -> None:
    FILES[kind](tmp_path)
    study = parse("study.toml", STUDY | {"file": "data.*"})
    assert same(read_site(str(tmp_path), "", True, study=study), plain)


def test_the_delimiter_and_decimal_mark_of_a_study_are_those_of_its_texts_only(tmp_path: Path, plain: Source) -> None:
    study = parse("study.toml", STUDY | {"file": "data.*", "delimiter": ";", "decimal": ","})
    for kind in ("text", "Excel", "SPSS"):
        folder = tmp_path / kind
        folder.mkdir()
        if kind == "text":
            (folder / "data.csv").write_text(text(";", ","))
        else:
            FILES[kind](folder)
        assert same(read_site(str(folder), "", True, study=study), plain), kind


@pytest.mark.parametrize(("kind", "said"), [("UTF-16", "UTF-16"), ("Latin-1", "Windows-1252"), ("UTF-8", "UTF-8")])
def test_an_encoding_that_was_found_is_named(tmp_path: Path, kind: str, said: str) -> None:
    FILES[kind](tmp_path)
    assert encoding_of(tmp_path / "data.csv") == said


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
@pytest.mark.parametrize("version", [0, 5, 8])  # of a transport file; 0: SAS's own format
def test_what_a_file_of_sas_has_is_what_was_written(tmp_path: Path, encoding: str, version: int) -> None:
    wards = ["gynäkologie", "pflege"]
    frame = pd.DataFrame({"ward": wards * 10, "zero": 0.0, "label": [n // 2 % 2 for n in range(20)]})
    file = tmp_path / ("data.xpt" if version else "data.sas7bdat")
    if version:
        pyreadstat.write_xport(frame, str(file), file_format_version=version)
        utf_8 = wards[0].encode()
        file.write_bytes(file.read_bytes().replace(utf_8, wards[0].encode(encoding).ljust(len(utf_8))))
    else:  # nothing in Python writes it: R did, by haven::write_sas(frame)
        shutil.copy(Path(__file__).with_name("table.sas7bdat"), file)
    words = STUDY | {"file": "data.*", "columns": {"ward": {"codes": wards}, "zero": {}}}
    read = read_site(str(tmp_path), "", True, study=parse("study.toml", words))
    (tmp_path / "as").mkdir()
    frame.to_csv(tmp_path / "as" / "data.csv", index=False)
    assert same(read, read_site(str(tmp_path / "as"), "", True, study=parse("study.toml", words)))
    assert takes(file) >= CELL * 3 * 20


@pytest.mark.parametrize("kind", ["Stata", "Parquet"])
def test_a_short_float_is_the_number_that_was_entered(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "FRAME", pd.DataFrame({"crp": np.float32([5.1, -9.9, np.nan, 0.7])} | LABELS))
    FILES[kind](tmp_path)
    study = STUDY | {"file": "data.*", "columns": {"crp": {"missing": ["-9.9"], "range": [0.7, 5.1]}}}
    read = read_site(str(tmp_path), "", True, study=parse("study.toml", study))
    np.testing.assert_array_equal(read.inputs.flatten(), np.float32([5.1, np.nan, np.nan, 0.7]))


def test_a_workbook_of_several_sheets_needs_a_name(tmp_path: Path, plain: Source) -> None:
    with pd.ExcelWriter(tmp_path / "data.xlsx") as book:
        pd.DataFrame({"read": ["me"]}).to_excel(book, sheet_name="notes", index=False)
        FRAME.to_excel(book, sheet_name="patients", index=False, startrow=2)
    with pytest.raises(DataError, check=has(key="sheet")):
        read_site(str(tmp_path), "label", True)
    named = STUDY | {"file": "data.xlsx", "sheet": "patients", "header-row": 3}
    assert same(read_site(str(tmp_path), "", True, study=parse("study.toml", named)), plain)
    with pytest.raises(DataError, check=has(key="sheet", value="none")):
        read_site(str(tmp_path), "", True, study=parse("study.toml", named | {"sheet": "none"}))


def test_dates_and_merged_cells_of_a_workbook_are_named(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for row in (["age", "seen", "label"], [61, datetime(2026, 3, 1), 1], [48, datetime(2026, 3, 2), 0]):
        sheet.append(row)
    book.save(tmp_path / "data.xlsx")
    with pytest.raises(DataError, check=has("'2026-03-01'", key="seen", row=1)):
        read_site(str(tmp_path), "label", True)
    sheet.merge_cells("A2:A3")
    book.save(tmp_path / "data.xlsx")
    with pytest.raises(DataError, check=has("A2:A3")):
        read_site(str(tmp_path), "label", True)


def edited(file: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change a part of a workbook, whose values are then final."""
    with zipfile.ZipFile(file) as book:
        parts = {each: book.read(each) for each in book.namelist()}
    parts["xl/workbook.xml"] = parts["xl/workbook.xml"].replace(b' fullCalcOnLoad="1"', b"")
    parts[name] = change(parts[name])
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as book:
        for each, content in parts.items():
            book.writestr(each, content)


@pytest.mark.filterwarnings("error")  # of a program's inside, which a hospital's log does not need
def test_a_workbook_whose_sheets_openpyxl_does_not_know_is_refused(tmp_path: Path) -> None:
    FILES["Excel"](tmp_path)
    edited(
        tmp_path / "data.xlsx",
        "xl/workbook.xml",
        lambda text: text.replace(b"schemas.openxmlformats.org", b"purl.oclc.org/ooxml"),  # "Strict Open XML"
    )
    with pytest.raises(DataError, check=has("data.xlsx", "Strict Open XML", "CSV")):
        read_site(str(tmp_path), "label", True)


UNCALCULATED = {
    "no value": b'<c r="B3"><f>0.9*2</f></c>',
    "an empty value": b'<c r="B3"><f>0.9*2</f><v></v>\n</c>',
    "a text without a value": b'<c r="B3" t="str"><f>0.9*2</f></c>',
    "shared": b'<c r="B3"><f t="shared" si="0"/><v/></c>',
    "an array": b'<c r="B3"><f t="array" ref="B3:B4">0.9*2</f></c>',
    "without a name": b"<c><f>0.9*2</f></c>",
}
CALCULATED = {
    "a value": b'<c r="B3"><f>0.9*2</f><v>1.8</v></c>',
    "shared, a value": b'<c r="B3"><f t="shared" si="0"/><v>1.8</v></c>',
    "an inline text": b'<c r="B3" t="inlineStr"><f>0.9*2</f><is><t>1.8</t></is></c>',
}


@pytest.mark.parametrize("kind", UNCALCULATED | CALCULATED)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_formula_is_its_result_and_refused_without_one(
    tmp_path: Path, kind: str, encoding: str, plain: Source
) -> None:
    FILES["Excel"](tmp_path)

    def change(sheet: bytes) -> bytes:
        new = re.sub(rb'<c r="B3".*?</c>', lambda _: (UNCALCULATED | CALCULATED)[kind], sheet)
        return b"".join((b'<?xml version="1.0"?>', new)).decode().encode(encoding)

    edited(tmp_path / "data.xlsx", "xl/worksheets/sheet1.xml", change)
    if kind in CALCULATED:
        assert same(read_site(str(tmp_path), "label", True), plain)
        return
    for read in (lambda: read_site(str(tmp_path), "label", True), lambda: draft(tmp_path / "data.xlsx")):
        with pytest.raises(DataError, check=has("2 of row 3" if kind == "without a name" else "B3")):
            read()


def test_a_formula_without_letters_is_a_blank_cell(tmp_path: Path) -> None:
    FILES["Excel"](tmp_path)
    empty = b'<c r="B3" t="str"><f>IF(A3&gt;0,"",1)</f><v></v></c>'
    edited(tmp_path / "data.xlsx", "xl/worksheets/sheet1.xml", lambda sheet: re.sub(rb'<c r="B3".*?</c>', empty, sheet))
    assert int(torch.isnan(read_site(str(tmp_path), "label", True).inputs).sum()) == 2


@pytest.mark.parametrize(("where", "refused"), [("A1", False), ("C4", True), ("notes", False)])
@pytest.mark.parametrize("result", [b"<v></v>", b"<v>0</v>"])  # 0 is what some programs put there
def test_formulas_that_a_program_wrote_are_refused_where_the_table_is(
    tmp_path: Path, where: str, refused: bool, result: bytes, plain: Source
) -> None:
    with pd.ExcelWriter(tmp_path / "data.xlsx") as book:
        pd.DataFrame({"read": ["=1+1"]}).to_excel(book, sheet_name="notes", index=False)
        FRAME.to_excel(book, sheet_name="patients", index=False, startrow=1)
        if where != "notes":
            book.sheets["patients"][where] = "=1+1"
    with zipfile.ZipFile(tmp_path / "data.xlsx") as book:
        parts = {each: book.read(each) for each in book.namelist()}
    with zipfile.ZipFile(tmp_path / "data.xlsx", "w") as book:
        for name, content in parts.items():
            book.writestr(name, re.sub(rb"<v ?/>|<v></v>", result, content))
    study = parse("study.toml", STUDY | {"file": "data.xlsx", "sheet": "patients", "header-row": 2})
    if not refused:
        assert same(read_site(str(tmp_path), "", True, study=study), plain)
        return
    with pytest.raises(DataError, check=has(f"{where} ", "'patients'")):
        read_site(str(tmp_path), "", True, study=study)


@pytest.mark.parametrize("name", ["data.rds", "data.RData", "data.arff", "data.xls"])
def test_what_is_not_read_is_named_with_what_converts_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, check=has(tmp_path / name)):
        read_site(str(tmp_path), "", True, study=parse("study.toml", STUDY | {"file": name}))


@pytest.mark.parametrize("kind", ["arff", "json", "feather", "por", "zsav"])
def test_the_command_that_is_named_makes_the_table(
    tmp_path: Path, kind: str, plain: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"it's $(touch pwned) raw.{kind}"
    frame = FRAME.assign(label=FRAME["label"].map({0: "no", 1: "yes"}))
    if kind == "arff":
        head = "@relation r\n@attribute age numeric\n@attribute größe numeric\n@attribute label {no,yes}\n@data\n"
        body = frame.to_csv(index=False, header=False, na_rep="?", lineterminator="\n")
        (tmp_path / name).write_text(head + body)
    elif kind == "zsav":
        pyreadstat.write_sav(frame, name, compress=True)
    elif kind == "por":  # which knows capital letters of ASCII alone
        pyreadstat.write_por(frame.rename(columns={"größe": "GR"}), name)
    else:
        getattr(frame, f"to_{kind}")(tmp_path / name)
    with pytest.raises(DataError, check=has(name)) as caught:
        read_site(str(tmp_path), "", True, study=parse("study.toml", STUDY | {"file": name}))
    option, code, named = shlex.split(str(caught.value).partition(" python ")[2])
    assert (option, named) == ("-c", name)
    monkeypatch.setattr("sys.argv", [option, named])
    exec(code, {})
    (tmp_path / name).unlink()
    if kind == "por":
        made = pd.read_csv("data.csv").rename(columns={"AGE": "age", "GR": "größe", "LABEL": "label"})
        made.to_csv("data.csv", index=False)
    assert same(read_site(str(tmp_path), "label", True), plain)


def test_no_name_of_a_file_breaks_out_of_the_command_that_converts_it() -> None:
    for kind in CONVERT:
        plain = shlex.split(convertible(f"raw{kind}"))
        for name in ("my data", "$(touch pwned)", "it's", "a'), quit('", "{0}", 'a"; touch pwned; "', "-rf"):
            own = f"{name}{kind}"
            safe = f"./{own}" if own.startswith("-") else own
            assert shlex.split(convertible(own)) == [safe if each == f"raw{kind}" else each for each in plain]


@pytest.mark.parametrize("stray", ["D1000", "CV300000"])
def test_a_blank_cell_anywhere_makes_no_sheet_larger(
    tmp_path: Path, plain: Source, stray: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FILES["Excel"](tmp_path)
    book = openpyxl.load_workbook(tmp_path / "data.xlsx")
    sheet = book.active
    assert sheet is not None
    sheet[stray].number_format = "0.00"
    book.save(tmp_path / "data.xlsx")
    monkeypatch.setattr("edelweiss.datasets.site.formats.free_memory", lambda: 10**8)
    monkeypatch.setattr("openpyxl.worksheet.worksheet.Worksheet.iter_rows", None)  # makes 30 million cells
    assert same(read_site(str(tmp_path), "label", True), plain)


def test_a_sheet_with_a_value_far_away_is_refused_before_its_rows_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FILES["Excel"](tmp_path)
    book = openpyxl.load_workbook(tmp_path / "data.xlsx")
    sheet = book.active
    assert sheet is not None
    sheet["CV300000"] = 1
    book.save(tmp_path / "data.xlsx")
    monkeypatch.setattr("edelweiss.datasets.site.formats.free_memory", lambda: 10**8)
    with pytest.raises(DataError, check=has("data.xlsx", "0.6 GB", "300,000")):
        read_site(str(tmp_path), "label", True)


def test_cells_of_a_sheet_whose_elements_have_a_prefix_are_counted(tmp_path: Path) -> None:
    FILES["Excel"](tmp_path)
    before = takes(tmp_path / "data.xlsx")
    with zipfile.ZipFile(tmp_path / "data.xlsx") as book:
        parts = {name: book.read(name) for name in book.namelist()}
    sheet = parts["xl/worksheets/sheet1.xml"]
    parts["xl/worksheets/sheet1.xml"] = sheet.replace(b"<c ", b"<x:c ").replace(b"</c>", b"</x:c>")
    with zipfile.ZipFile(tmp_path / "data.xlsx", "w") as book:
        for name, content in parts.items():
            book.writestr(name, content)
    assert takes(tmp_path / "data.xlsx") >= before


def test_a_damaged_sheet_does_not_make_a_workbook_small(tmp_path: Path) -> None:
    FILES["Excel"](tmp_path)
    before = takes(tmp_path / "data.xlsx")
    with zipfile.ZipFile(tmp_path / "data.xlsx", "a") as book:
        unpacked = sum(part.file_size for part in book.infolist())
        book.writestr("xl/worksheets/other.xml", b"no cells")
        book.getinfo("xl/worksheets/other.xml").CRC ^= 1
    assert takes(tmp_path / "data.xlsx") >= before > unpacked
    with zipfile.ZipFile(tmp_path / "data.xlsx", "a") as book:
        book.writestr("docProps/more.xml", b"")
        book.getinfo("xl/worksheets/sheet1.xml").CRC ^= 1
    with zipfile.ZipFile(tmp_path / "data.xlsx") as book, pytest.raises(zipfile.BadZipFile):
        book.read("xl/worksheets/sheet1.xml")
    assert takes(tmp_path / "data.xlsx") >= unpacked


@pytest.mark.parametrize("kind", ["UTF-16", "gzip", "Parquet", "Stata", "Stata of 2008", "transport", "SPSS", "Excel"])
def test_what_a_table_takes_is_known_before_it_is_read(tmp_path: Path, kind: str) -> None:
    frame = FRAME.rename(columns={"größe": "size"})
    if kind == "transport":
        pyreadstat.write_xport(frame, str(tmp_path / "data.xpt"), file_format_version=5)
    elif kind == "Stata of 2008":
        frame.to_stata(tmp_path / "data.dta", write_index=False, version=114)
    else:
        FILES[kind](tmp_path)
    [file] = tmp_path.iterdir()
    header = kind in ("UTF-16", "gzip")  # of text lines are counted
    if kind == "Excel":
        assert takes(file) > 400 * 12
    elif kind == "transport":  # its head counts no rows
        assert takes(file) >= CELL * 3 * len(FRAME)
    else:
        assert takes(file) == CELL * 3 * (len(FRAME) + header)


def test_a_small_workbook_that_becomes_a_large_one_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FILES["Excel"](tmp_path)
    with zipfile.ZipFile(tmp_path / "data.xlsx") as book:
        parts = {name: book.read(name) for name in book.namelist()}
    parts["xl/worksheets/sheet1.xml"] += b" " * 10**8
    with zipfile.ZipFile(tmp_path / "data.xlsx", "w", zipfile.ZIP_DEFLATED) as book:
        for name, content in parts.items():
            book.writestr(name, content)
    assert (tmp_path / "data.xlsx").stat().st_size < 10**6
    monkeypatch.setattr("edelweiss.datasets.site.formats.free_memory", lambda: 5 * 10**7)
    monkeypatch.setattr("openpyxl.load_workbook", None)
    with pytest.raises(DataError, check=has("data.xlsx", "0.1 GB", "CSV")):
        read_site(str(tmp_path), "label", True)


@pytest.mark.parametrize("name", ["data.xlsx", "data.dta", "data.sas7bdat", "data.sav", "data.parquet", "data.csv.gz"])
@pytest.mark.parametrize("content", [b"", b"\x1f\x8b" + bytes(30), b"PK\3\4" + bytes(30)])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, check=has(tmp_path / name)):
        read_site(str(tmp_path), "label", True)


def test_a_stata_file_that_was_cut_is_not_taken_for_another_kind(tmp_path: Path) -> None:
    FILES["Stata"](tmp_path)
    whole = (tmp_path / "data.dta").read_bytes()
    (tmp_path / "data.dta").write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(DataError) as told:
        read_site(str(tmp_path), "label", True)
    assert "XML" not in str(told.value)


def test_what_is_packed_twice_is_named_so(tmp_path: Path) -> None:
    (tmp_path / "data.csv.gz").write_bytes(gzip.compress(gzip.compress(text().encode())))
    with pytest.raises(DataError, check=has("data.csv.gz", "gzip")):
        read_site(str(tmp_path), "label", True)


def test_an_encoding_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, check=lambda error: error.keys == ["encoding"]):
        parse("study.toml", STUDY | {"encoding": "latin-nine"})
    (tmp_path / "data.csv").write_bytes(text().encode("utf-16"))
    with pytest.raises(DataError, check=has("data.csv", "ascii", key="encoding")):
        read_site(str(tmp_path), "", True, study=parse("study.toml", STUDY | {"encoding": "ascii"}))


@pytest.mark.parametrize("blank", [b"\n", b" \r\n"])
@pytest.mark.parametrize("start", [b"", b"age,label\n1,0\n"])
def test_blank_lines_without_end_are_refused_before_their_end_is_read(
    tmp_path: Path, start: bytes, blank: bytes
) -> None:
    packed = gzip.compress(start + blank * 4 * BLANK)
    (tmp_path / "data.csv.gz").write_bytes(packed[:-20])  # whoever reads it all sees that its end lacks
    for read in (lambda: read_site(str(tmp_path), "label", True), lambda: draft(tmp_path / "data.csv.gz")):
        with pytest.raises(DataError, check=has(f"{BLANK:,}")):
            read()


def test_blank_lines_at_the_end_of_a_table_are_none(
    tmp_path: Path, plain: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edelweiss.datasets.site.formats.PART", 64)
    (tmp_path / "data.csv").write_text(text() + "\n" * 1000)
    assert same(read_site(str(tmp_path), "label", True), plain)
