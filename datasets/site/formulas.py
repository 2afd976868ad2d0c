"""The formulas of a workbook's sheet that have no results: whoever wrote it may have calculated none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import IO
from xml.etree import ElementTree

PART = 2**20  # bytes looked at at a time
FORMULA = re.compile(rb"<(?:\w+:)?f[\s/>]|\0")  # a formula; or the text is in UTF-16


def uncalculated(sheet: Callable[[], IO[bytes]], first: int, stale: bool) -> list[str]:
    """Return the cells, from a row on, with a formula and no value, or, if all are ``stale``, with a formula."""
    with sheet() as xml:
        before = b""
        for part in iter(lambda: xml.read(PART), b""):
            if FORMULA.search(before + part):
                break
            before = part[-100:]
        else:
            return []
    found = _Formulas(first, stale)
    parser = ElementTree.XMLParser(target=found)
    with sheet() as xml:
        for part in iter(lambda: xml.read(PART), b""):
            parser.feed(part)
    return found.open


class _Formulas:
    """The cells of a sheet that have formulas and no results, as a parser comes to them."""

    def __init__(self, first: int, stale: bool) -> None:
        self.open: list[str] = []
        self._first, self._stale = first, stale
        self._row = self._column = 0
        self._inside, self._name = "", ""
        self._formula = self._text = self._result = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        self._inside = tag = tag[tag.rfind("}") + 1 :]
        if tag == "c":
            self._column += 1
            self._name = attributes.get("r") or f"{self._column} of row {self._row}"
            self._formula, self._text, self._result = False, attributes.get("t") == "str", False
        elif tag == "row":
            self._row, self._column = int(float(attributes.get("r", self._row + 1))), 0
        elif tag == "f":
            self._formula = True
        elif tag == "is" or (tag == "v" and self._text):  # a text without a letter is a result, too
            self._result = True

    def data(self, text: str) -> None:
        """Take text of an element, or between two."""
        if self._inside == "v" and not text.isspace():
            self._result = True

    def end(self, tag: str) -> None:
        """End an element."""
        if tag.endswith("}c") and self._formula and (self._stale or not self._result) and self._row >= self._first:
            self.open.append(self._name)
