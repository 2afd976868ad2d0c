"""What a wrong name was probably meant to be."""

from __future__ import annotations

import difflib
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CLOSE = 0.7  # how alike the names of a table's columns are that are mistaken for each other: the user chose them
LONGEST = 120  # characters of a name or a value that a message shows


def shorter(text: str) -> str:
    """Return a text that fits into a message, and does nothing to a terminal."""
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
    return text if text.isprintable() else repr(text)


def shown(value: object) -> str:
    """Return a value as it is written in Python, if that can be said in a line."""
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST else f"{value[: LONGEST - 3]}...")
    try:
        return shorter(repr(value))
    except (ValueError, RecursionError, ArithmeticError):  # a number of thousands of digits; a list within itself
        return f"a value of type {type(value).__name__}"


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def closest(name: str, allowed: Iterable[str], least: float = 0.6) -> str:
    """Return the allowed name that a wrong one resembles most; empty when none is close.

    A key of a table also counts by its last part: ``lr`` is meant to be ``codasca.lr``, whatever else looks like it. Of
    several equally close names the first one is returned; ``least`` says how alike they must be, up to 1.
    """
    whole = {full: full for full in allowed}
    tails: dict[str, str] = {}
    for full in whole:
        tails.setdefault(full.rpartition(".")[2], full)
    if len(name) > LONGEST:
        return ""
    table, _, last = name.rpartition(".")
    for text, candidates in ((name, whole), (last, tails)) if table else ((last, tails), (name, whole)):
        if close := difflib.get_close_matches(text, candidates, n=1, cutoff=least):
            return candidates[close[0]]
    return ""


def hint(name: str, allowed: Iterable[str], least: float = 0.6) -> str:
    """Return " Did you mean ...?" for a wrong name; empty when nothing is close."""
    close = closest(name, allowed, least)
    return f" Did you mean {close!r}?" if close else ""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> str:
    """Say that a name is unknown, which is the closest, and which there are."""
    names = list(allowed)
    return f"unknown {kind} {shown(name)}.{hint(name, names)} There are: {', '.join(sorted(names))}"
