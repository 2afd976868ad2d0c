"""What separates the values of a text table, and which decimal mark it has, as its first lines show.

Nothing is guessed: ``1,234`` may be a decimal or thousands, and if no other number of the table says which, it is
refused with the line of a study file that says it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.common import shown
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.site.header import LOOKED_AT, SEPARATORS, START, separated

if TYPE_CHECKING:
    from edelweiss.datasets.site.formats import Form

COMMA, POINT = ",", "."
_NUMBER = {mark: re.compile(rf"[+-]?[0-9]*{re.escape(mark)}[0-9]+([eE][+-]?[0-9]+)?") for mark in (COMMA, POINT)}
_THOUSANDS = {mark: re.compile(rf"[+-]?[1-9][0-9]{{0,2}}{re.escape(mark)}[0-9]{{3}}") for mark in (COMMA, POINT)}


def resolved(file: Path, start: str, form: Form) -> Form:
    """Return a form with what it leaves open: commas between values and decimal points, or what the text shows.

    Parameters
    ----------
    file
        For messages.
    start
        The first `START` characters of the text, or all of it.
    form
        Its delimiter and decimal mark are open where empty.

    Raises
    ------
    DataError
        If it is unclear which decimal mark the numbers have.
    """
    delimiter = form.delimiter
    if not delimiter:
        other = separated(start, COMMA)
        delimiter = other.mark if other else COMMA
    form = replace(form, delimiter=delimiter)
    return form if form.decimal else replace(form, decimal=_decimal(file, start, delimiter))


def in_words(form: Form) -> str:
    """Say how a table is separated, and the lines of a study file that say the same; empty for commas and points."""
    if (form.delimiter, form.decimal) == (COMMA, POINT):
        return ""
    commas = ", with decimal commas" * (form.decimal == COMMA)
    delimiter = {"\t": r"\t"}.get(form.delimiter, form.delimiter)
    keys = f'delimiter = "{delimiter}", decimal = "{form.decimal}"'
    return f"read as separated by {SEPARATORS[form.delimiter]}{commas}, as found ({keys} in a study file)"


def uniform(
    file: Path, lines: Iterable[tuple[int, list[str]]], form: Form, decimal: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield lines, each with its number in the file, with another decimal mark than the form's in their numbers.

    Raises
    ------
    DataError
        For a number that has the other mark already: it is not of this table's kind.
    """
    if form.decimal == decimal:
        yield from lines
        return
    own, other = _NUMBER[form.decimal], _NUMBER[decimal]
    header: list[str] = []
    for number, row in lines:
        for place, cell in enumerate(row if header else []):
            if own.fullmatch(text := cell.strip()):
                row[place] = text.replace(form.decimal, decimal)
            elif other.fullmatch(text):
                name = header[place] if place < len(header) else f"{place + 1}"
                raise DataError(
                    f"{file}: column {shown(name)}: line {number} ({text!r}) has {_called(decimal)}, and other numbers "
                    f"have {_called(form.decimal)}: correct it, or let a study file say that all have: decimal = "
                    f'"{form.decimal}"',
                    f"{file.name}: some numbers have decimal commas, and some have decimal points",
                    key="decimal",
                )
        header = header or row
        yield number, row


def _decimal(file: Path, start: str, delimiter: str) -> str:
    if delimiter == COMMA:  # and 12,5 in quotation marks is no number
        return POINT
    lines = start.splitlines()
    if len(start) >= START:
        lines = lines[:-1]  # may be cut off
    try:
        header, *rows = islice(csv.reader(lines, delimiter=delimiter), LOOKED_AT) if lines else [[]]
    except csv.Error:
        return POINT  # who reads it says what is wrong
    sure: dict[str, tuple[str, str]] = {}  # by mark, a number that can only be a decimal, and its column
    open_: dict[str, tuple[str, str]] = {}
    for row in rows:
        for name, cell in zip(header, row, strict=False):
            for mark in (COMMA, POINT):
                if _NUMBER[mark].fullmatch(text := cell.strip()):
                    (open_ if _THOUSANDS[mark].fullmatch(text) else sure).setdefault(mark, (text, name))
    there = sure.keys() | open_.keys()
    if not there:
        return POINT
    if COMMA in sure and POINT not in there:
        return COMMA
    if POINT in sure and COMMA not in sure:
        return POINT  # and 1,234 is no number
    if COMMA in sure:
        (comma, first), (point, second) = sure[COMMA], {**open_, **sure}[POINT]
        what = f"{shown(comma)} in column {shown(first)} and {shown(point)} in column {shown(second)}"
        mend = 'let a study file say decimal = "," or decimal = ".", and drop the columns that it does not fit'
    else:
        mark = COMMA if COMMA in open_ else POINT
        text, name = open_[mark]
        what = f"{shown(text)} in column {shown(name)}: {_called(mark)}, or thousands"
        mend = f'let a study file say decimal = "{mark}" if it is a decimal, or write it without the mark'
    raise DataError(
        f"{file}: it is unclear which decimal mark its numbers have: {what}; {mend}",
        f"{file.name}: it is unclear which decimal mark its numbers have",
        key="decimal",
    )


def _called(mark: str) -> str:
    return "a decimal comma" if mark == COMMA else "a decimal point"
