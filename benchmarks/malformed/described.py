"""What says how data are read, or where: study files, graphs, DICOM headers, folders of the environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from benchmarks.malformed import Case, Kind
from benchmarks.malformed.commands import places
from benchmarks.malformed.data import at_a_site, tried

if TYPE_CHECKING:
    from pydicom.dataset import FileDataset

STUDY = """patient = "p"
[label]
column = "y"
negative = ["no"]
positive = ["yes"]
[columns.age]
range = [0, 120]
[columns.sex]
codes = { w = 0, m = 1 }
"""
ROWS = "p,y,age,sex\n" + "".join(f"p{i},{('no', 'yes')[i % 2]},{i + 30},{'wm'[i // 2 % 2]}\n" for i in range(8))
IN_A_STUDY = {
    "the label's column is the patient's": ('patient = "p"', 'patient = "y"'),
    "a feature is the patient's column": ('patient = "p"', 'patient = "age"'),
    "a feature is the label": ('column = "y"', 'column = "age"'),
    "the header names a column twice": ('patient = "p"', 'patient = "p"\nheader = ["p", "y", "age", "age", "sex"]'),
    "a range in text": ("[0, 120]", '["0", "1_20"]'),
    "a range of truth values": ("[0, 120]", "[false, true]"),
    "a range from NaN": ("[0, 120]", "[nan, 120]"),
    "a range without end": ("[0, 120]", "[0, inf]"),
    "a range of one": ("[0, 120]", "[5, 5]"),
    "a code in text": ("w = 0", 'w = "0_1"'),
    "a code that is a truth value": ("w = 0", "w = true"),
    "a code beyond all numbers": ("w = 0", "w = 1e999"),
    "two codes of one word": ("w = 0", "w = 0, W = 1"),
    "a word that is missing and a code": ("m = 1 }", 'm = 1 }\nmissing = ["M"]'),
    "an unknown key": ("range", "ranges"),
    "the delimiter is the decimal mark": ('patient = "p"', 'patient = "p"\ndecimal = ","'),
    "another delimiter than the table's": ('patient = "p"', 'patient = "p"\ndelimiter = ";"'),
    "a text of both classes": ('["yes"]', '["yes", "NO"]'),
    "the patient is no text": ('patient = "p"', "patient = 7"),
    "the table lacks a column": ("columns.age", "columns.ages"),
}
IN_A_TABLE = ("0_2", "１", " ", "1 2", "1e999", "inf", "nan!", "2020-01-01", "٣", "1,5", "--1", "0x10")
GRAPHS = {
    "weights beside the edges": ("g.toml", "edges = [[0, 1], [1, 2]]\nweights = [1, 2]"),
    "a table of edges": ("g.toml", "edges = { a = 1 }"),
    "edges in text": ("g.toml", 'edges = [["0", "1"], ["1", "2"]]'),
    "truth values": ("g.toml", "edges = [[true, false], [1, 2]]"),
    **{
        f"a line 1,{cell!r}": ("g.csv", f"0,1\n1,{cell}\n")
        for cell in ("0_2", "２", "²", "2.0", "1e0", "", "x", "9" * 30)
    },
    "three columns": ("g.csv", "from,to,weight\n0,1,0.5\n1,2,0.5\n"),
    "a first line 0_1,2": ("g.csv", "0_1,2\n0,1\n1,2\n"),
}
WRONG_TAGS: list[tuple[str, Any]] = [
    *(("Rows", count) for count in (15, 17, 0)),
    *(("Columns", count) for count in (19, 21)),
    *(("BitsAllocated", bits) for bits in (8, 12, 0)),
    ("RescaleSlope", "0"),
    ("SamplesPerPixel", 3),
    ("NumberOfFrames", 2),
    ("PhotometricInterpretation", "NONE"),
]


def studies(rng: Random) -> Iterator[Case]:
    """Yield study files that contradict themselves, and tables that do not fit a good one."""

    def read(study: str, table: str) -> Callable[[], None]:
        def reading() -> None:
            from edelweiss.config.study import read_study
            from edelweiss.datasets import DataConfig, load_site

            with tempfile.TemporaryDirectory() as scratch:
                (Path(scratch) / "study.toml").write_text(study, encoding="utf-8")
                (Path(scratch) / "data.csv").write_text(table, encoding="utf-8")
                load_site(
                    DataConfig(dataset="site", data_dir=scratch, study=read_study(str(Path(scratch) / "study.toml"))),
                    0,
                    1,
                )

        return reading

    yield tried("as it should be", read(STUDY, ROWS), fine=True)
    for what, (old, new) in IN_A_STUDY.items():
        yield tried(what, read(STUDY.replace(old, new, 1), ROWS))
    for cell in IN_A_TABLE:
        yield tried(f"an age of {cell!r}", read(STUDY, ROWS.replace(",35,", f",{cell},")), fine=not cell.strip())


def graphs(rng: Random) -> Iterator[Case]:
    """Yield lists of edges that are something else."""

    def read(name: str, text: str) -> Callable[[], None]:
        def reading() -> None:
            from edelweiss.strategies.graphs import mixing_graph

            with tempfile.TemporaryDirectory() as scratch:
                (Path(scratch) / name).write_text(text, encoding="utf-8")
                mixing_graph("file", 3, file=f"{scratch}/{name}")

        return reading

    for what, (name, text) in GRAPHS.items():
        yield tried(what, read(name, text))


def _dataset() -> FileDataset:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    made = FileDataset("", {}, file_meta=FileMetaDataset(), preamble=bytes(128))
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = SecondaryCaptureImageStorage
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID = "1.2.3"
    made.Rows, made.Columns, made.SamplesPerPixel, made.PhotometricInterpretation = 16, 20, 1, "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 12, 11, 0
    made.PixelData = np.arange(1, 321, dtype="<u2").tobytes()
    made["PixelData"].VR = "OW"
    return made


def dicoms(rng: Random) -> Iterator[Case]:
    """Yield DICOM files whose header and pixels disagree, or that are cut; some lack the preamble."""

    def listed(change: Callable[[Any], object], start: int = 0, end: int | None = None) -> Callable[[], None]:
        def make(file: Path) -> None:
            made = _dataset()
            change(made)
            place = file.parent / "x.dcm"
            made.save_as(place, enforce_file_format=True)
            place.write_bytes(place.read_bytes()[start:end])

        return at_a_site("labels.csv", b"path,label\nx.dcm,1\n", make)

    def setting(name: str, value: Any) -> Callable[[Any], object]:
        return lambda made: setattr(made, name, value)

    for start, what in ((0, "with"), (132, "without")):
        yield tried(f"{what} its preamble", listed(lambda made: None, start), fine=True)
        for name, value in WRONG_TAGS:
            yield tried(f"{what} its preamble: {name} = {value}", listed(setting(name, value), start))
        for name in ("Rows", "PixelData", "BitsStored", "PhotometricInterpretation"):
            yield tried(f"{what} its preamble and {name}", listed(lambda made, name=name: delattr(made, name), start))  # type: ignore[misc]
        for end in sorted(rng.sample(range(start, 900), 12)):
            yield tried(f"{what} its preamble, {end} bytes", listed(lambda made: None, start, end))


def environments(rng: Random) -> Iterator[Case]:
    """Yield places that the environment names, for every data set that lies in files."""
    from edelweiss.datasets.sources import SOURCES

    with tempfile.TemporaryDirectory() as scratch:
        found = [
            what for what, place in places(Path(scratch)) if "\0" not in place
        ]  # which the environment cannot have
    names = [name for name, row in SOURCES.items() if not row.read.__module__.endswith(".bundled")]
    for variable in ("EDELWEISS_DATA", "EDELWEISS_CACHE"):
        for what in dict.fromkeys(found):
            for name in names:

                def read(variable: str = variable, what: str = what, name: str = name) -> None:
                    from edelweiss.datasets import DataConfig, load_test

                    with tempfile.TemporaryDirectory() as scratch:
                        there = dict(places(Path(scratch)))[what]
                        usual = {"EDELWEISS_DATA": scratch, "EDELWEISS_CACHE": scratch}
                        with patch.dict(os.environ, {**usual, variable: there}):
                            load_test(DataConfig(dataset=name, download=False))

                yield tried(f"{variable} is {what}: {name}", read)


KINDS: dict[str, Kind] = {
    "study files": studies,
    "graphs": graphs,
    "DICOM files": dicoms,
    "folders of the environment": environments,
}
