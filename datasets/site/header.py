"""The first line of a table: whether it names the columns, and whether the values are separated as they should be."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from edelweiss.common import shown
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.numbers import MISSING, is_number

UNNAMED = re.compile(r"Unnamed: \d+|__index_level_\d+__")  # as pandas and Arrow call a column without a name
LOOKED_AT = 1000  # rows of a table, at most
START = 2**16  # bytes of a file
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}


class Form(NamedTuple):
    """How a table is separated, and whether its numbers have decimal commas."""

    mark: str
    commas: bool

    def __str__(self) -> str:
        return f"its values seem to be separated by {SEPARATORS[self.mark]}{', with decimal commas' * self.commas}"

    @property
    def keys(self) -> str:
        """What a study file says of such a table."""
        mark = r"\t" if self.mark == "\t" else self.mark
        return f'delimiter = "{mark}"' + ' and decimal = ","' * self.commas


def wrong_names(file: Path, names: Sequence[str]) -> Iterator[DataError]:
    """Yield what is wrong with the names of the columns."""
    if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
        listed = examples([shown(name) for name in twice])
        text = f"{file}: {listed} names more than one column; rename them"
        yield DataError(text, f"{file.name}: {len(twice)} names are those of more than one column")
    if bare := [str(place) for place, name in enumerate(names, 1) if not name or UNNAMED.fullmatch(name)]:
        yield DataError(
            f"{file}: column {examples(bare)} has no name, as the row numbers that pandas writes: remove it "
            "(to_csv(..., index=False)), or name it",
            f"{file.name}: {len(bare)} columns have no name",
        )
    if odd := [shown(name) for name in names if not name.isprintable()]:
        text = f"{file}: the names of columns {examples(odd)} cannot be printed; rename them"
        yield DataError(text, f"{file.name}: {len(odd)} names of columns cannot be printed")


def no_names(file: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[DataError]:
    """Yield what is wrong with a first line that is a patient's."""
    if holds_values(header, rows):
        yield DataError(
            f"{file}: the first line seems to hold values and not the names of the columns, for each is like those "
            "below it; put a line with the names before it. If they are names, change one of them into a word, or "
            "describe the table by a study file",
            f"{file.name}: the first line seems to hold values, not the names of the columns",
        )


def holds_values(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first line is a patient's and not the header: each cell is like those below it.

    A number is like numbers, and a word like words that differ in their digits only. So a header in which one column is
    named by a word may name the others by codes, such as ``50912`` or ``250.1``; and names that count the columns, from
    0 or from 1, are names.

    Parameters
    ----------
    header
        The first line.
    rows
        Some of the others, each as long.
    """
    cells = [name.strip() for name in header]
    counted = any(cells == [str(place + first) for place in range(len(cells))] for first in (0, 1))
    if counted or not any(map(is_number, cells)):
        return False
    said = [place for place, cell in enumerate(cells) if cell.lower() not in MISSING]
    return all(_is_like(cells[place], [row[place].strip() for row in rows]) for place in said)


def _is_like(cell: str, column: Sequence[str]) -> bool:
    """Whether a text is of the kind of a column's values."""
    if is_number(cell):
        return any(map(is_number, column)) or all(text.lower() in MISSING for text in column)
    return _shape(cell) in map(_shape, column)


def _shape(text: str) -> str:
    return re.sub("[0-9]+", "0", text.lower())


def separated(text: str, used: str) -> Form | None:
    """Return how a table is separated, where it is not as it should be; None where nothing shows that.

    Parameters
    ----------
    text
        The beginning of the file.
    used
        What should be between its values.
    """
    lines = [line for line in text.splitlines()[:LOOKED_AT] if line.strip()]
    if len(text) >= START:
        lines = lines[:-1]  # which may be cut off
    widths = {mark: _width(lines, mark) for mark in {**SEPARATORS, used: ""}}
    mark = max((mark for mark in SEPARATORS if mark != used), key=lambda mark: widths[mark])
    if widths[used] > 1 or widths[mark] < 2:
        return None
    cells = [cell.strip() for row in csv.reader(lines[1:], delimiter=mark) for cell in row]
    return Form(mark, mark != "," and any(re.fullmatch("[+-]?[0-9]+,[0-9]+", cell) for cell in cells))


def _width(lines: Sequence[str], mark: str) -> int:
    """Return how many values all lines have, if those are separated by this; 0 where they have different numbers."""
    try:
        widths = {len(row) for row in csv.reader(lines, delimiter=mark)}
    except csv.Error:
        return 0
    return widths.pop() if len(widths) == 1 else 0
