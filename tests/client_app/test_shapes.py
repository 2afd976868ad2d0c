"""Data as hospitals hold them: what ``doctor`` says of each shape in docs/shapes.toml, and that its advice helps."""

from __future__ import annotations

import contextlib
import gzip
import random
import re
import shlex
import shutil
import sqlite3
import subprocess
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyreadstat
import pytest
from PIL import Image

from edelweiss.client_app.cli import main
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor import Finding, examine
from tests.datasets.dicoms import dataset, ramp, write

SHAPES = tomllib.loads((Path(__file__).parents[2] / "docs" / "shapes.toml").read_text(encoding="utf-8"))
ROWS = 60
PIXELS = (16, 20)
ABOUT = ("data", "labels", "images", "encoding", "rules")


def table(**columns: Any) -> pd.DataFrame:
    """Return a table of patients, with further columns or other values."""
    drawn = random.Random(0)
    rows = [[drawn.randint(30, 89), drawn.randint(1, 900) / 10, drawn.randint(0, 1), n % 2] for n in range(ROWS)]
    return pd.DataFrame(rows, columns=["age", "crp", "smoker", "label"]).assign(**columns)


def some(name: str, value: object, step: int = 9) -> pd.DataFrame:
    """Return the table with another value in every ninth row of a column."""
    return table(**{name: [value if n % step == 0 else old for n, old in enumerate(table()[name])]})


def text(frame: pd.DataFrame | None = None, **how: Any) -> str:
    return (table() if frame is None else frame).to_csv(index=False, lineterminator="\n", **how)


def comma(number: object) -> str:
    return str(number).replace(".", ",")


def put(content: str | bytes, name: str = "data.csv", encoding: str = "utf-8") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(
        content if isinstance(content, bytes) else content.encode(encoding)
    )


def workbook(change: Callable[[Any], object], above: int = 0) -> Callable[[Path], object]:
    """Return what writes a workbook, some rows below the first, whose sheet is then changed."""

    def written(folder: Path) -> None:
        table().to_excel(folder / "data.xlsx", index=False, startrow=above)
        book = openpyxl.load_workbook(folder / "data.xlsx")
        change(book.active)
        book.save(folder / "data.xlsx")

    return written


def sheets(folder: Path) -> None:
    with pd.ExcelWriter(folder / "data.xlsx") as book:
        pd.DataFrame({"read": ["me"]}).to_excel(book, sheet_name="notes", index=False)
        table().to_excel(book, sheet_name="patients", index=False)


def cells(where: str, value: object) -> Callable[[Any], object]:
    return lambda sheet: setattr(sheet[where], "value", value)


def zipped(folder: Path) -> None:
    with zipfile.ZipFile(folder / "data.zip", "w") as file:
        file.writestr("data.csv", text())


def arff(folder: Path) -> None:
    head = "".join(f"@attribute {name} numeric\n" for name in table())
    put(f"@relation patients\n{head}@data\n{text(header=False)}", "data.arff")(folder)


def sqlite(folder: Path) -> None:
    with sqlite3.connect(folder / "warehouse.sqlite") as connection:
        table(patient=range(1, ROWS + 1)).to_sql("cohort", connection, index=False)


def visits(**columns: Any) -> pd.DataFrame:
    """Return three rows of each patient."""
    drawn = random.Random(1)
    once = table(height=[drawn.randint(1500, 2000) / 10 for _ in range(ROWS)])
    often = once.loc[once.index.repeat(3)].reset_index(drop=True)
    return often.assign(crp=[drawn.randint(1, 900) / 10 for _ in range(3 * ROWS)], **columns)


def images(folder: Path, bad: str = "", listed: bool = True) -> pd.DataFrame:
    """Write images and their list, of which the third is something else."""
    drawn = np.random.default_rng(0)
    names = [f"{n}.{'dcm' if n < 4 else 'png'}" for n in range(ROWS)]
    for n, name in enumerate(names):
        if n < 4:
            write(folder / name, dataset(ramp(PIXELS, high=100 + n)))
        else:
            Image.fromarray(drawn.integers(0, 255, PIXELS, dtype=np.uint8)).save(folder / name)
    names[3] = bad or names[3]
    frame = pd.DataFrame({"path": names, "label": table()["label"]})
    if listed:
        put(text(frame), "labels.csv")(folder)
    return frame


def windows(folder: Path) -> None:
    (folder / "ct").mkdir()
    frame = images(folder / "ct", listed=False)
    put(text(frame.assign(path="ct\\" + frame["path"])), "labels.csv")(folder)


def odd_size(folder: Path) -> None:
    images(folder)
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(folder / "9.png")


def series(folder: Path) -> None:
    for n in range(ROWS):
        (folder / str(n)).mkdir()
        write(folder / str(n) / "1.dcm", dataset(ramp(PIXELS, high=100 + n)))
    put(text(pd.DataFrame({"path": range(ROWS), "label": table()["label"]})), "labels.csv")(folder)


def frames(folder: Path) -> None:
    images(folder)
    several = dataset(ramp(PIXELS), NumberOfFrames=2)
    several.PixelData *= 2
    write(folder / "3.dcm", several)


def volume(folder: Path) -> None:
    images(folder, bad="3.nii.gz")
    put(gzip.compress(bytes([92, 1, 0, 0]) + bytes(340) + b"n+1\0" + bytes(100)), "3.nii.gz")(folder)


def ids(start: int) -> list[int]:
    return [start + 37 * n for n in range(ROWS)]


def dates(form: str) -> list[str]:
    return [form.format(month=1 + n % 12, day=1 + n % 16) for n in range(ROWS)]


def lines(*others: tuple[int, str]) -> str:
    """Return the table as text with some lines more, each by its place."""
    found = text().splitlines()
    for place, line in others:
        found.insert(place, line)
    return "\n".join(found)


FILES: dict[str, Callable[[Path], object]] = {
    "comma": put(text()),
    "semicolon": put(text(sep=";", decimal=",")),
    "excel-first-line": put("sep=;\r\n" + text(sep=";", decimal=",")),
    "tab": put(text(sep="\t")),
    "bar": put(text(sep="|")),
    "spaces": put(text(sep=" ")),
    "windows": put(text(table().rename(columns={"age": "größe"})), encoding="cp1252"),
    "utf-16": put(text(sep="\t"), encoding="utf-16-le"),
    "dos": put(text(table().rename(columns={"crp": "größe"})), encoding="cp850"),
    "mark": put(text(), encoding="utf-8-sig"),
    "gzip": put(gzip.compress(text().encode()), "data.csv.gz"),
    "title-csv": put("Sepsis study, export of 1 March 2026\n\n" + text()),
    "no-header": put(text(header=False)),
    "twice": put("age,crp,crp,label\n" + text(header=False)),
    "unnamed": put(table().to_csv()),
    "ragged": put(text().replace("\n", ",extra\n", 8).replace(",extra\n", "\n", 7)),
    "totals": put(lines((ROWS + 1, "3000,2800,30,"))),
    "empty": put(""),
    "no-rows": put("age,crp,smoker,label\n"),
    "other-name": put(text(sep="\t"), "patients 2026.tsv"),
    "two-files": lambda folder: (put(text())(folder), table().to_excel(folder / "data.xlsx", index=False)),
    "excel": lambda folder: table().to_excel(folder / "data.xlsx", index=False),
    "sheets": sheets,
    "title-excel": workbook(cells("A1", "Sepsis study, export of 1 March 2026"), above=2),
    "merged": workbook(lambda sheet: sheet.merge_cells("A2:A3")),
    "text-numbers": lambda folder: table(crp=table()["crp"].map(comma)).to_excel(folder / "data.xlsx", index=False),
    "formulas": workbook(cells("B3", "=1.5*2")),
    "excel-errors": workbook(cells("B3", "#DIV/0!")),
    "password": put(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "data.xlsx"),
    "xls": put(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "data.xls"),
    "wrong-suffix": lambda folder: (
        table().to_excel(folder / "a.xlsx"),
        (folder / "a.xlsx").rename(folder / "data.csv"),
    ),
    "parquet": lambda folder: table().set_index("age").to_parquet(folder / "data.parquet"),
    "stata": lambda folder: table().to_stata(folder / "data.dta", write_index=False, version=118),
    "spss": lambda folder: pyreadstat.write_sav(table(), str(folder / "data.sav")),
    "sas": lambda folder: pyreadstat.write_xport(table(), str(folder / "data.xpt"), file_format_version=5),
    "r": put(gzip.compress(b"X\n"), "data.rds"),
    "arff": arff,
    "zip": zipped,
    "sqlite": sqlite,
    "fhir": put('{"resourceType":"Patient","id":"1"}\n', "Patient.ndjson"),
    "words-among-numbers": put(text(some("crp", "<0.5"))),
    "units": put(text(table(crp=table()["crp"].map("{} mg/l".format)))),
    "categories": put(text(table(sex=["m", "f", "f"] * 20))),
    "yes-no": put(text(table(smoker=table()["smoker"].map({0: "Nein", 1: "Ja"})))),
    "true-false": put(text(table(smoker=table()["smoker"] == 1))),
    "thousands": put(text(table(platelets=[f"{150 + n},{37 * n % 1000:03}" for n in range(ROWS)]))),
    "unclear": put(
        text(
            table(crp=[23.7, *table()["crp"][1:]], platelets=[f"{150 + n}.{37 * n % 1000:03}" for n in range(ROWS)]),
            sep=";",
            decimal=",",
        )
    ),
    "missing": put(text(some("crp", "NA"))),
    "missing-words": put(text(some("crp", "k. A."))),
    "missing-codes": put(text(some("crp", -9))),
    "dates": put(text(table(born=dates("1950-{month:02}-{day:02}")))),
    "date-numbers": put(text(table(seen=dates("2026{month:02}{day:02}")))),
    "identifier": put(text(table(pid=ids(10**5)))),
    "long-identifier": put(text(table(pid=ids(2**62)))),
    "names": put(text(table(name=[f"Person {chr(65 + n // 8)}{chr(97 + n % 8)}" for n in range(ROWS)]))),
    "visits": put(text(visits(patient=[f"p{n // 3}" for n in range(3 * ROWS)]))),
    "visits-unsaid": put(text(visits())),
    "repeated": put(text(pd.concat([table(), table()[:20]]))),
    "label-name": put(text(table().rename(columns={"label": "outcome"}))),
    "label-words": put(text(table(label=table()["label"].map({0: "Nein", 1: "Ja"})))),
    "label-three": put(text(table(label=[0, 1, 0, 2] * 15))),
    "label-blank": put(text(some("label", "", step=50))),
    "label-copy": put(text(table(died=table()["label"]))),
    "label-leak": put(text(table(days=[n % 9 + 100 * (n % 2) for n in range(ROWS)]))),
    "one-class": put(text(table(label=0))),
    "few-positives": put(text(table(label=[int(n < 9) for n in range(ROWS)]))),
    "few-rows": put(text(table()[:12])),
    "constant": put(text(table(ward=7))),
    "images": images,
    "images-unlisted": lambda folder: images(folder, listed=False),
    "images-windows": windows,
    "images-sizes": odd_size,
    "series": series,
    "frames": frames,
    "nifti": volume,
    "dicomweb": put("path,label\nhttps://pacs.example.org/dicom-web/1,1\n", "labels.csv"),
}


def by_the_command(said: str, folder: Path) -> None:
    """Run the command that a message ends with, in a folder."""
    program, *arguments = shlex.split(said.partition("convert it, with ")[2])
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        if program == "python":
            patch.setattr("sys.argv", ["-c", *arguments[2:]])
            exec(arguments[1], {})
        else:
            subprocess.run([program, *arguments], check=True, capture_output=True)


def extracted(said: str, folder: Path) -> None:
    """Run the command that a message names, with a study's query."""
    (folder / "study.toml").write_text(
        'file = "data.parquet"\npatient = "patient"\nlabel.column = "label"\nlabel.negative = ["0"]\n'
        'label.positive = ["1"]\ncolumns.age.unit = "years"\nextract.query = "SELECT patient, age, label FROM cohort"\n'
    )
    command = shlex.split(said.partition("edelweiss-site ")[2].replace("STUDY.toml", str(folder / "study.toml")))
    assert main([*command, "--data-dir", str(folder), "--state-dir", str(folder.parent / "state")]) == 0


def again(content: str, name: str = "data.csv") -> Callable[[str, Path], object]:
    """Return what exports the data again."""
    return lambda _, folder: put(content, name)(folder)


def relisted(_: str, folder: Path) -> None:
    """List other images."""
    shutil.rmtree(folder)
    folder.mkdir()
    images(folder)


MENDS: dict[str, Callable[[str, Path], object]] = {
    **dict.fromkeys(["spaces", "twice", "ragged", "empty", "no-rows", "units", "thousands"], again(text())),
    **dict.fromkeys(["repeated", "one-class", "few-positives", "few-rows"], again(text())),
    **dict.fromkeys(["images-unlisted", "frames", "nifti", "dicomweb"], relisted),
    "merged": lambda _, folder: table().to_excel(folder / "data.xlsx", index=False),
    "formulas": lambda _, folder: table().to_excel(folder / "data.xlsx", index=False),
    "password": lambda _, folder: table().to_excel(folder / "data.xlsx", index=False),
    "wrong-suffix": lambda _, folder: (
        (folder / "data.csv").unlink(),
        table().to_excel(folder / "data.xlsx", index=False),
    ),
    "xls": lambda _, folder: table().to_excel(folder / "data.xlsx", index=False),  # soffice is not here
    "r": again(text()),  # nor is R
    "arff": by_the_command,
    "zip": by_the_command,
    "sqlite": extracted,
    "fhir": again(text()),  # tests/client_app/test_fhir.py
    "visits-unsaid": again(text()),
    "series": lambda _, folder: put(
        text(pd.DataFrame({"path": [f"{n}/1.dcm" for n in range(ROWS)], "label": table()["label"]})), "labels.csv"
    )(folder),
}


def study_of(said: list[str]) -> str:
    """Return a study file with these lines, and what else a study of the table says."""
    names = {line.partition(" =")[0] for line in said}
    dropped = re.findall(r'"(\w+)"', next((line for line in said if line.startswith("drop")), ""))
    rest = {"file": "data.*", "label.column": "label", "label.negative": ["0"], "label.positive": ["1"]}
    rest |= {f"columns.{name}.unit": "" for name in ("age", "crp", "smoker") if name not in dropped}
    if 'encoding = "cp850"' in said:
        rest["columns.größe.unit"] = rest.pop("columns.crp.unit")
    lines = [f"{key} = {value!r}" for key, value in rest.items() if key not in names]
    return "\n".join([*said, *lines]).replace("columns.größe", 'columns."größe"')


def asked(folder: Path, **keys: str) -> list[Finding]:
    """Return what doctor says of a folder; nobody listens where it looks for its coordinator."""
    options = {"superlink": "127.0.0.1:1", "insecure": True, "data-dir": str(folder), "label": "label", **keys}
    return list(examine(JoinConfig.read("", options)))


def test_the_shapes_are_those_that_are_written_here() -> None:
    assert SHAPES.keys() == FILES.keys()
    unmended = [name for name, row in SHAPES.items() if row["level"] != "ok" and not {"study", "settings"} & {*row}]
    assert set(unmended) == MENDS.keys()
    assert all(SHAPES[name]["do"] for name in MENDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_doctor_says_what_the_page_says_and_that_helps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, folder = SHAPES[name], tmp_path / "data"
    folder.mkdir()
    FILES[name](folder)
    found = asked(folder)
    about = [one for one in found if one.about in ABOUT]
    [said] = [one for one in about if row["says"] in one.text and one.level == row["level"]]
    if said.level == "ok":
        assert {one.level for one in about} == {"ok"}
    else:
        monkeypatch.setattr("builtins.input", lambda _: "yes")
    mended_folder = shutil.copytree(folder, tmp_path / "mended")  # whose rows this process has not read yet
    if name in MENDS:
        MENDS[name](said.text.replace(str(folder), str(mended_folder)), mended_folder)
    keys = tomllib.loads(row.get("settings", ""))
    if "study" in row:
        (mended_folder / "study.toml").write_text(study_of(row["study"]), encoding="utf-8")
    if (mended_folder / "study.toml").exists():
        keys["study"] = str(mended_folder / "study.toml")
    mended = [one for one in asked(mended_folder, **keys) if one.about in ABOUT]
    assert {one.level for one in mended} == {"ok"}, [one.text for one in mended if one.level != "ok"]
    assert row["level"] == "ok" or not any(row["says"] in one.text for one in mended)
