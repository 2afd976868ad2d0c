"""Checks of a table's first line: does it name the columns, and is it separated as expected?"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from edelweiss.common import shown
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.numbers import MISSING, is_number

UNNAMED = re.compile(r"Unnamed: \d+|__index_level_\d+__")  # how pandas and Arrow name a column without a name
LOOKED_AT = 1000  # most rows examined
START = 2**16  # bytes of a file examined
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}


class Form(NamedTuple):
    """A table's delimiter, and whether its numbers have decimal commas."""

    mark: str
    commas: bool

    def __str__(self) -> str:
        return f"its values seem to be separated by {SEPARATORS[self.mark]}{', with decimal commas' * self.commas}"

    @property
    def keys(self) -> str:
        """The keys of a study file that describe such a table."""
        mark = r"\t" if self.mark == "\t" else self.mark
        return f'delimiter = "{mark}"' + ' and decimal = ","' * self.commas


def wrong_names(file: Path, names: Sequence[str]) -> Iterator[DataError]:
    """Yield the problems of the columns' names."""
    if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
        listed = examples([shown(name) for name in twice])
        text = f"{file}: {listed} names more than one column; rename them"
        yield DataError(text, f"{file.name}: {len(twice)} names stand for more than one column", key=twice[0])
    if bare := [str(place) for place, name in enumerate(names, 1) if not name or UNNAMED.fullmatch(name)]:
        yield DataError(
            f"{file}: column {examples(bare)} has no name, like the row numbers that pandas writes "
            "(to_csv(..., index=False) does not), or the last one where lines end with a separator: name it, remove "
            "it, or let a study file name the others",
            f"{file.name}: {len(bare)} columns have no name",
        )
    if odd := [shown(name) for name in names if not name.isprintable()]:
        text = f"{file}: the names of columns {examples(odd)} cannot be printed; rename them"
        yield DataError(text, f"{file.name}: {len(odd)} names of columns cannot be printed")


def title_above(file: Path, first: Sequence[str], lines: Sequence[tuple[int, Sequence[str]]]) -> DataError | None:
    """Return an error if the first line is a title, as of a report: a wider line of names comes below it."""
    filled = sum(map(bool, (cell.strip() for cell in first)))
    for (number, row), (_, below) in pairwise(lines[:LOOKED_AT]):
        names = [cell.strip() for cell in row]
        if len(names) > max(1, filled) and len(names) == len(below) and all(names) and len({*names}) == len(names):
            if any(map(is_number, names)):
                return None
            text = f"line {number} seems to name the columns, and not the first one"
            mend = f"say header-row = {number} in a study file, or remove the lines above it"
            return DataError(f"{file}: {text}: {mend}", f"{file.name}: {text}", key="header-row", value=number)
    return None


def no_names(file: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[DataError]:
    """Yield an error if the first line is a patient's."""
    if holds_values(header, rows):
        yield DataError(
            f"{file}: the first line seems to hold values, not the names of the columns: each cell is like those below "
            "it. Insert a line with the names above it, or let a study file name them, as header. If they are names, "
            "change one of them into a word",
            f"{file.name}: the first line seems to hold values, not the names of the columns",
            key="header",
        )


def holds_values(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first line is a patient's, not the header: each cell is like those below it.

    A number is like numbers; a word is like words that differ only in their digits. A header with one word may
    therefore have codes such as ``50912`` or ``250.1`` as other names. Numbers that count the columns from 0 or 1 are
    names.
    """
    cells = [name.strip() for name in header]
    counted = any(cells == [str(place + first) for place in range(len(cells))] for first in (0, 1))
    if counted or not any(map(is_number, cells)):
        return False
    said = [place for place, cell in enumerate(cells) if cell.lower() not in MISSING]
    return all(_is_like(cells[place], [row[place].strip() for row in rows]) for place in said)


def holds_words(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first line of words is a patient's: each cell is like those below it, or half of them are values there.

    It is stricter than `holds_values`, for where names are shown to others.
    """
    columns = [[row[place].strip() for row in rows] for place in range(len(header))]
    if not any(map(any, columns)):
        return False
    among = sum(name.lower() in {text.lower() for text in column} for name, column in zip(header, columns, strict=True))
    return 2 * among >= len(header) or all(map(_is_like, header, columns))


def _is_like(cell: str, column: Sequence[str]) -> bool:
    """Whether a cell is like a column's values."""
    if is_number(cell):
        return any(map(is_number, column)) or all(text.lower() in MISSING for text in column)
    return _shape(cell) in map(_shape, column)


def _shape(text: str) -> str:
    return re.sub("[0-9]+", "0", text.lower())


def separated(text: str, used: str) -> Form | None:
    """Return how a table, which begins with this text, is separated if not by ``used``; None if that is not evident."""
    lines = [line for line in text.splitlines()[:LOOKED_AT] if line.strip()]
    if len(text) >= START:
        lines = lines[:-1]  # may be cut off
    widths = {mark: _width(lines, mark) for mark in {**SEPARATORS, used: ""}}
    mark = max((mark for mark in SEPARATORS if mark != used), key=lambda mark: widths[mark])
    if widths[used] > 1 or widths[mark] < 2:
        return None
    cells = [cell.strip() for row in csv.reader(lines[1:], delimiter=mark) for cell in row]
    return Form(mark, mark != "," and any(re.fullmatch("[+-]?[0-9]+,[0-9]+", cell) for cell in cells))


def _width(lines: Sequence[str], mark: str) -> int:
    """Return the number of values in every line with this delimiter; 0 if it varies."""
    try:
        widths = {len(row) for row in csv.reader(lines, delimiter=mark)}
    except csv.Error:
        return 0
    return widths.pop() if len(widths) == 1 else 0
