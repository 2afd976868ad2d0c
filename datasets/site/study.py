"""A study file: what the columns of every hospital's table mean, written once by the coordinator.

With it, a hospital's table is read as it is, with its delimiters, codes and words for categories, and becomes a table
of numbers with labels from 0.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.common import hint, numbers, repeated
from edelweiss.common.files import as_path, reason
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.numbers import MISSING, TRUTH, canonical
from edelweiss.datasets.site.formats import Form, text_of
from edelweiss.datasets.site.header import START, separated
from edelweiss.datasets.site.table import looks_like

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from edelweiss.datasets.source import Mask

DATE = re.compile(r"^(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})([ T].*)?$")


@dataclass(frozen=True)
class Column:
    """One feature."""

    name: str  # in the table's header
    unit: str = ""  # shown in messages
    low: float = -math.inf  # allowed range, inclusive
    high: float = math.inf
    codes: tuple[tuple[str, float], ...] = ()  # for a category: pairs of a word and its number; empty: it is a number
    missing: tuple[str, ...] = ()  # texts for a missing value, in addition to the study's
    bands: tuple[float, ...] = ()  # numbers, ascending, at which subgroups begin
    mean: float | None = None  # what is typical of patients, from the literature, say
    deviation: float | None = None

    @property
    def typical(self) -> tuple[float, float] | None:
        """Mean and standard deviation: as stated, or of a uniform number in the range, or of codes; None: unknown."""
        if self.mean is not None and self.deviation is not None:
            return self.mean, self.deviation
        if self.codes:
            numbers = np.array([code for _, code in self.codes])
            return float(numbers.mean()), float(numbers.std()) or 1.0
        if math.isfinite(self.low) and math.isfinite(self.high):
            return (self.low + self.high) / 2, (self.high - self.low) / math.sqrt(12)
        return None

    def parted(self, values: NDArray[np.float32]) -> dict[str, Mask]:
        """Return which values belong to each subgroup: the words of a category, the bands of a number."""
        if self.codes:
            words: dict[float, list[str]] = {}
            for word, code in self.codes:
                words.setdefault(code, []).append(word)
            parts = {" or ".join(said): values == np.float32(code) for code, said in words.items()}
        else:
            ends = np.array([-math.inf, *self.bands, math.inf], np.float32)
            inner = [f"{low:g} to {high:g}" for low, high in pairwise(self.bands)]
            names = [f"below {self.bands[0]:g}", *inner, f"{self.bands[-1]:g} or more"]
            parts = {
                name: (values >= low) & (values < high) for name, (low, high) in zip(names, pairwise(ends), strict=True)
            }
        return {**parts, "missing": np.isnan(values)}


@dataclass(frozen=True)
class Study:
    """The content of a study file. Its texts ignore case, and whole numbers may be written with a point and zeros."""

    columns: tuple[Column, ...]  # the features; other columns are not read
    label: str  # name of the label column
    classes: tuple[tuple[str, ...], ...]  # for each class from 0, the texts in that column that mean it
    file: str = "data.csv"  # name of the table in a hospital's folder, or a pattern that matches one file
    delimiter: str = ","  # between values
    decimal: str = "."  # within numbers
    encoding: str = ""  # of text; empty: found
    sheet: str = ""  # of a workbook; empty: its only one
    header_row: int = 1  # of a sheet
    header: tuple[str, ...] = ()  # names of all columns in order, for tables without a header; empty: the first line
    missing: tuple[str, ...] = MISSING[1:]  # texts for a missing value, unless a word of the category; "" always is
    patient: str = ""  # column with the patient ids; empty: none
    subgroups: tuple[str, ...] = ()  # features, with codes or bands, in whose subgroups a model is evaluated

    def place(self, folder: str) -> Path:
        """Return the table's file; DataError if there is none or more than one."""
        try:
            found = sorted(path for path in as_path(folder).glob(self.file) if path.is_file())
        except (OSError, ValueError, NotImplementedError) as error:
            text = f"data-dir {folder} cannot be read: {reason(error)}"
            raise DataError(text, "the data folder cannot be read", key="data-dir", value=folder) from None
        if len(found) != 1:
            what = f"{len(found)} match: {examples([path.name for path in found])}" if found else "none matches"
            raise DataError(
                f"data-dir {folder}: exactly one file must match the study's {self.file!r}, but {what}",
                f"{len(found)} files of the data folder match the study's file; exactly one must",
                key="data-dir",
                value=folder,
            )
        return found[0]

    def table(self, file: Path, also: str = "") -> pd.DataFrame:
        """Read a hospital's own table as text: decimal points, the class's number as label, empty if missing.

        ``also`` names a column to keep as it is, if it exists.

        Raises
        ------
        DataError
            With everything that does not fit the study.
        """
        frame = self._frame(file)
        problems = list(self._absent(frame, file))
        for column in self.columns:
            if column.name in frame:
                frame[column.name] = self._numbers(frame[column.name], column, file, problems)
        if self.label in frame:
            frame[self.label] = self._classes(frame[self.label], file, problems)
        if problems:
            raise DataError.join(problems)
        wanted = [*self.names(), *([also] if also in frame and also not in self.names() else [])]
        return frame[wanted]

    def names(self) -> list[str]:
        """Return the columns that are read."""
        return [column.name for column in self.columns] + [self.label, *([self.patient] if self.patient else [])]

    @property
    def form(self) -> Form:
        """How the file is written."""
        return Form(self.delimiter, self.decimal, self.encoding, self.sheet, self.header_row)

    # ------------------------------------------------------------------ steps

    def _frame(self, file: Path) -> pd.DataFrame:
        """Read the lines as text."""
        import pandas as pd

        try:
            data = text_of(file, self.form)
            if kind := looks_like(data):
                raise ValueError(f"it is {kind}")
            with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="") as stream:
                lines = csv.reader(stream, delimiter=self.delimiter, strict=True)
                rows = [(lines.line_num, [value.strip() for value in line]) for line in lines if any(line)]
        except DataError:
            raise
        except (OSError, ValueError, csv.Error) as error:
            text = f"{file} cannot be read: {reason(error)}; it must be text separated by {self.delimiter!r}"
            raise DataError(text, "the table cannot be read") from error
        header = list(self.header)
        if rows and header in ([], rows[0][1]):
            header = rows.pop(0)[1]
        if not rows:
            raise DataError(f"{file} has no rows", "the table has no rows")
        form = separated(data[:START].decode("utf-8", "replace"), self.delimiter)
        if form and (len(header) == 1 or any(len(values) != len(header) for _, values in rows)):
            raise DataError(
                f"{file}: {form}, but the study says {self.delimiter!r}: write {form.keys} there",
                "the table's values are not separated as the study says",
            )
        problems = []
        if ragged := [f"line {number} has {len(values)}" for number, values in rows if len(values) != len(header)]:
            text = f"{file}: there are {len(header)} columns, but {examples(ragged)}; is it separated by "
            public = f"{len(ragged)} lines of the table do not have one value per column"
            problems.append(DataError(f"{text}{self.delimiter!r}?", public))
        if twice := repeated(header):
            text = f"{file}: {examples(twice)} names more than one column; rename them"
            problems.append(DataError(text, f"{len(twice)} names stand for more than one column", key=twice[0]))
        if problems:
            raise DataError.join(problems)
        return pd.DataFrame([values for _, values in rows], columns=header, dtype=str)

    def _absent(self, frame: pd.DataFrame, file: Path) -> Iterator[DataError]:
        names = list(map(str, frame.columns))
        for name in self.names():
            if name not in names:
                text = f"{file}: the table has no column {name!r}, which the study names.{hint(name, names)}"
                yield DataError(text, "the table lacks a column that the study names", key=name)

    def _numbers(self, values: pd.Series, column: Column, file: Path, problems: list[DataError]) -> pd.Series:
        """Return a feature as numbers in text, empty where missing; errors are added to ``problems``."""
        found, wrong = self.cells(values, column)
        for why, places in wrong.items():
            rows = [f"row {place + 1} ({values.iloc[place]!r})" for place in places]
            problems.append(
                DataError(
                    f"{file}: column {column.name!r}: {examples(rows)}: {why}",
                    f"{len(rows)} values of a column do not fit the study",
                    key=column.name,
                    row=places[0] + 1,
                )
            )
        return type(values)(found, index=values.index, name=values.name)

    def cells(self, values: Iterable[str], column: Column) -> tuple[list[str], dict[str, list[int]]]:
        """Return a feature as numbers in text, empty where missing, and the places of invalid values by reason."""
        gone = {"", *map(canonical, (*self.missing, *column.missing))}
        codes = {canonical(word): repr(code) for word, code in column.codes}
        known: dict[str, tuple[str, str]] = {}
        read: list[str] = []
        wrong: dict[str, list[int]] = {}
        for place, text in enumerate(values):
            if (found := known.get(text)) is None:
                found = known[text] = self._number(text, column, codes, gone)
            read.append(found[0])
            if found[1]:
                wrong.setdefault(found[1], []).append(place)
        return read, wrong

    def _number(self, text: str, column: Column, codes: dict[str, str], gone: set[str]) -> tuple[str, str]:
        """Return a value as a number in text, and the reason if it is invalid."""
        plain = text if self.decimal == "." else text.replace(".", "x").replace(self.decimal, ".")
        spellings = (canonical(text), canonical(plain))
        if code := next((codes[spelling] for spelling in spellings if spelling in codes), ""):
            return code, ""
        if any(spelling in gone for spelling in spellings):
            return "", ""
        if column.codes:
            return "", f"allowed are {examples([word for word, _ in column.codes])}"
        if DATE.match(text):
            return "", "dates are not allowed: give an age or a number of days instead"
        try:
            value = TRUTH[text.lower()] if text.lower() in TRUTH else numbers.number(plain)
        except ValueError:
            return "", f"it must be a number, with {self.decimal!r} before its decimals"
        if not column.low <= value <= column.high:
            unit = f" {column.unit}" if column.unit else ""
            return "", f"it must be from {column.low:g} to {column.high:g}{unit}"
        return repr(value), ""

    def _classes(self, values: pd.Series, file: Path, problems: list[DataError]) -> pd.Series:
        """Return the class of each row; errors are added to ``problems``."""
        codes = {canonical(text): str(code) for code, texts in enumerate(self.classes) for text in texts}
        if wrong := [f"row {row} ({text!r})" for row, text in enumerate(values, 1) if canonical(text) not in codes]:
            allowed = examples(list(codes))
            problems.append(
                DataError(
                    f"{file}: label {self.label!r}: {examples(wrong)}: the study allows {allowed}; correct them or "
                    "remove these rows",
                    f"the label of {len(wrong)} rows is not one of the study's",
                    key=self.label,
                )
            )
        return values.map(lambda text: codes.get(canonical(text), ""))
