"""Suggestions for wrong names, and values in messages."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CLOSE = 0.7  # similarity of suggested column names, which users chose themselves
LONGEST = 120  # name or value in a message, in characters


def shorter(text: str) -> str:
    """Return a text shortened and printable, for a message."""
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
    return text if text.isprintable() else repr(text)


def amount(count: int, noun: str) -> str:
    """Return a count in words: "1 round", "3,000 rounds"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def shown(value: object) -> str:
    """Return the repr of a value, shortened, for a message."""
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST else f"{value[: LONGEST - 3]}...")
    try:
        return shorter(repr(value))
    except (ValueError, RecursionError, ArithmeticError):  # a huge number; a list that contains itself
        return f"a value of type {type(value).__name__}"


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def closest(name: str, allowed: Iterable[str], least: float = 0.6) -> str:
    """Return the allowed name closest to a wrong one; empty if none is close.

    Keys of tables are also compared by their last part, first for a name without a table: ``lr`` gives ``codasca.lr``.
    Of equally close names the first is returned; ``least`` is the lowest similarity, up to 1.
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
    """Return " Did you mean ...?" for a wrong name; empty if none is close."""
    close = closest(name, allowed, least)
    return f" Did you mean {close!r}?" if close else ""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> str:
    """Return the message for an unknown name: the closest name, and all."""
    names = list(allowed)
    return f"unknown {kind} {shown(name)}.{hint(name, names)} There are: {', '.join(sorted(names))}"


def within(table: str, problems: Iterable[str]) -> list[str]:
    """Return the problems of a table's keys, each of which begins with the key, with the table's name before it."""
    return [re.sub(r"^(unknown key ['\"])?", lambda start: f"{start[0]}{table}.", text) for text in problems]
