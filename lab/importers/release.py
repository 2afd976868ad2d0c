"""A source's folder as its owner publishes it: tables as text, their values by code, and the images that are there."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pandas as pd

from edelweiss.common import hint, shorter, shown
from edelweiss.common.files import is_file, read_file, reason
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.numbers import canonical
from edelweiss.datasets.site.formats import looks_like
from edelweiss.datasets.site.header import wrong_names
from edelweiss.lab.importers.listing import LABELS, NO_FINDING

GZIP = b"\x1f\x8b"
_AGAIN = "take the owner's file, and download it again if it is damaged"
# The labels of the CheXpert labeler, and its values, in any spelling of the number.
CHEXPERT_LABELS = (*LABELS, NO_FINDING)
CHEXPERT_CODES = {"1": "1", "0": "0", "-1": "-1", "": ""}


class Table:
    """A published table: text in the columns that were asked for, and rows that count from 1, after the header."""

    def __init__(self, file: Path, frame: pd.DataFrame, problems: list[DataError]) -> None:
        self.file, self.frame, self.problems = file, frame, problems

    def __getitem__(self, column: str) -> pd.Series:
        return self.frame[column]

    def __len__(self) -> int:
        return len(self.frame)

    def coded(self, column: str, codes: Mapping[str, str]) -> pd.Series:
        """Return what the values of a column stand for; numbers may have a point and zeros. Others are problems."""
        values = self[column]
        found = values.map({text: codes.get(text, codes.get(canonical(text))) for text in values.unique()})
        self._refuse(values[found.isna()], ", ".join(code or "empty" for code in codes))
        return found.fillna("")

    def matching(self, column: str, pattern: str, allowed: str) -> pd.Series:
        """Return the first group of a pattern in each value, which is to match as a whole; others are problems."""
        values = self[column]
        found = values.str.extract(f"^(?:{pattern})$", expand=False)
        self._refuse(values[found.isna()], allowed)
        return found.fillna("")

    def unique(self, column: str) -> pd.Series:
        """Return the values of a column in which no two may be the same."""
        values = self[column]
        self._refuse(values[values.duplicated()], "a value that no earlier row has")
        return values

    def labels(self, codes: Mapping[str, str], columns: Mapping[str, str]) -> pd.DataFrame:
        """Return a column for each label, read by code from the column that is named for it."""
        return pd.DataFrame({name: self.coded(column, codes) for name, column in columns.items()})

    def chexpert_labels(self) -> pd.DataFrame:
        """Return the labels as the CheXpert labeler writes them."""
        return self.labels(CHEXPERT_CODES, {name: name for name in CHEXPERT_LABELS})

    def _refuse(self, values: pd.Series, allowed: str) -> None:
        if len(values):
            rows = examples([f"row {row} ({shown(value)})" for row, value in values.items()])
            self.problems.append(DataError(f"{self.file}: column {values.name!r}: {rows}: allowed: {allowed}"))


class Release:
    """The folder of a source. Problems are collected, and `check` raises them all at once.

    Attributes
    ----------
    read
        What was read, for people.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[DataError] = []
        self.read: list[str] = []

    def has(self, file: str) -> bool:
        """Whether there is a table of this name, packed or not."""
        return self._found(file) is not None

    def first(self, *files: str) -> str:
        """Return the first of several names of a table under which there is one; else the first name."""
        return next(filter(self.has, files), files[0])

    def table(self, file: str, *columns: str) -> Table:
        """Read columns of a table, packed with gzip or not; an empty one where that cannot be done."""
        path = self._there(file)
        rows = self._rows(path, columns) if path else []
        if path and rows:
            self.read.append(f"{path.name} ({len(rows):,} rows)")
        frame = pd.DataFrame(rows, pd.RangeIndex(1, len(rows) + 1), list(columns), dtype=str)
        return Table(path or self.folder / file, frame, self.problems)

    def lines(self, file: str) -> frozenset[str]:
        """Read a list of names, one on each line; an empty one where that cannot be done."""
        if (path := self._there(file)) is None:
            return frozenset()
        try:
            return frozenset(_content(path).decode("utf-8-sig").split())
        except Exception as error:  # of the codecs in a damaged file
            self.problems.append(DataError(f"{path} cannot be read: {reason(error)}; {_AGAIN}"))
            return frozenset()

    def check(self) -> None:
        """Raise what was found to be wrong so far, as one error."""
        if self.problems:
            raise DataError.join(self.problems)

    # ------------------------------------------------------------------ files

    def _there(self, file: str) -> Path | None:
        """Return the path of a file, or record that it is missing."""
        if found := self._found(file):
            return found
        below = next(iter(sorted(self.folder.glob(f"*/{file}*"))), None)
        where = f" {below.parent if '/' not in file else below.parents[1]} has it: name that folder." if below else ""
        close = hint(Path(file).name, self._names)
        self.problems.append(DataError(f"{self.folder} has no {file} and no {file}.gz.{where or close}"))
        return None

    def _rows(self, path: Path, columns: Sequence[str]) -> list[list[str]]:
        """Return columns of a table as stripped text; none where that cannot be done.

        Each line has to be as long as the header: pandas would fill up in silence what a broken download has cut.
        """
        rows: list[list[str]] = []
        ragged: list[str] = []
        try:
            data = _content(path)
            if kind := looks_like(data):
                raise ValueError(f"it is {kind}")
            with io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="") as stream:
                lines = (line for line in csv.reader(stream, strict=True) if line)
                header = [name.strip() for name in next(lines, [])]
                if absent := _absent(path, header, columns):
                    self.problems += absent
                    return []
                places = [header.index(name) for name in columns]
                for row, line in enumerate(lines, start=1):
                    if len(line) == len(header):
                        rows.append([line[place].strip() for place in places])
                    else:
                        ragged.append(f"row {row} has {len(line)}")
            if ragged:
                raise ValueError(f"the header has {len(header)} columns, but {examples(ragged)}")
            if not rows:
                raise ValueError("it has a header and no rows")
        except Exception as error:  # of the codecs in a damaged file, too
            self.problems.append(DataError(f"{path} cannot be read: {reason(error)}; {_AGAIN}"))
            return []
        return rows

    def _found(self, file: str) -> Path | None:
        return next((path for end in ("", ".gz") if is_file(path := self.folder / f"{file}{end}")), None)

    @cached_property
    def _names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.folder))


class Images:
    """The image files below a folder, which are listed once, as far as they are asked for.

    `folders` are where in the root paths begin: patterns such as ``images_*/images``, by priority; `endings` what is
    put behind a path.
    """

    def __init__(self, root: Path, folders: Sequence[str] = ("",), endings: Sequence[str] = ("",)) -> None:
        self.root, self.endings = root, endings
        self.folders = [place for pattern in folders for place in (sorted(root.glob(pattern)) if pattern else [root])]
        self._listed: dict[str, dict[str, str]] = {}

    def find(self, path: str) -> str:
        """Return where an image is, below the root; empty where it is missing."""
        parent, _, name = path.rpartition("/")
        if (there := self._listed.get(parent)) is None:
            there = self._listed[parent] = self._files(parent)
        return next((there[name + ending] for ending in self.endings if name + ending in there), "")

    def _files(self, parent: str) -> dict[str, str]:
        """Return where the files are that lie in a folder of this name, by their names; the first of each counts."""
        found: dict[str, str] = {}
        if parent.startswith("/") or ".." in parent.split("/"):
            return found
        for folder in reversed(self.folders):
            place = (folder / parent).relative_to(self.root).as_posix()
            with contextlib.suppress(OSError, ValueError), os.scandir(self.root / place) as entries:
                names = [entry.name for entry in entries if entry.is_file()]
                found |= {name: f"{place}/{name}".removeprefix("./") for name in names}
        return found


def _content(path: Path) -> bytes:
    data = read_file(path)
    return gzip.decompress(data) if data.startswith(GZIP) else data


def _absent(path: Path, header: Sequence[str], columns: Sequence[str]) -> list[DataError]:
    """Return a problem for each column that a table lacks, or has twice."""
    if not header:
        return [DataError(f"{path} is empty; {_AGAIN}")]
    problems = [
        DataError(f"{path}: no column {name!r}.{hint(name, header)} It has: {shorter(', '.join(header))}")
        for name in columns
        if name not in header
    ]
    return [*problems, *wrong_names(path, [name for name in header if name in columns])]
