"""What a record of a message may hold: its keys described one by one, and checked before anything is used.

Whoever sent it is not trusted, so nothing is converted, and what is said of a value is short and printable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edelweiss.common.suggest import shown

NAMED = 3  # mistakes that a line names


def printable(text: str, longest: int = 2000) -> str:
    """Return words that came from elsewhere in one line that does nothing to a terminal."""
    cut = text if len(text) <= longest else f"{text[:longest]}..."
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in cut)


@dataclass(frozen=True)
class Number:
    """A number from ``low`` to ``high``; ``whole`` an integer; ``nan`` whether it may be undefined.

    Sums may be beyond the ends by ``rounding``.
    """

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    nan: bool = False
    rounding: float = 0.0

    def fits(self, value: object) -> bool:
        """Whether a value is such a number; True and False are none."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        try:
            if not math.isfinite(value):
                return self.nan and math.isnan(value)
        except OverflowError:  # an integer that no float holds
            return False
        return self.low - self.rounding <= value <= self.high + self.rounding

    def all_fit(self, values: Sequence[object]) -> bool:
        """Whether each of many values is such a number; where all are of one type, and finite, their ends say it."""
        kinds = set(map(type, values))  # from which mypy does not learn what they are
        if kinds == {int} or (kinds == {float} and math.isfinite(sum(values))):  # type: ignore[arg-type]
            return self.fits(min(values)) and self.fits(max(values))  # type: ignore[type-var]
        return all(map(self.fits, values))

    def __str__(self) -> str:
        ends = [f">= {self.low:g}"] * math.isfinite(self.low) + [f"<= {self.high:g}"] * math.isfinite(self.high)
        return ("an integer " if self.whole else "a finite number ") + " and ".join(ends)


@dataclass(frozen=True)
class Text:
    """Words of ``least`` to ``longest`` printable characters, or one of ``options``.

    ``plain`` words have letters, digits, - and _ only, ``name`` is something that a file can be called.
    """

    longest: int = 100
    options: tuple[str, ...] = ()
    plain: bool = False
    name: bool = False
    least: int = 0

    def fits(self, value: object) -> bool:
        """Whether a value is such words."""
        if not isinstance(value, str):
            return False
        if self.options:
            return value in self.options
        if self.name and (value in ("", ".", "..") or "/" in value):
            return False
        return self.least <= len(value) <= self.longest and (
            bool(re.fullmatch(r"[0-9A-Za-z_-]*", value)) if self.plain else value.isprintable()
        )

    def __str__(self) -> str:
        if self.options:
            return f"one of {', '.join(map(repr, self.options[:NAMED]))}" + ", ..." * (len(self.options) > NAMED)
        kind = "letters, digits, - and _" if self.plain else "printable characters"
        return f"at most {self.longest} {kind}" + " that make no path" * self.name


@dataclass(frozen=True)
class Flag:
    """True or False."""

    def fits(self, value: object) -> bool:
        """Whether a value is one of the two."""
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Binary:
    """Bytes, ``entry`` for each of several things."""

    entry: int = 1

    def fits(self, value: object) -> bool:
        """Whether a value is such bytes."""
        return isinstance(value, bytes) and len(value) % self.entry == 0

    def __str__(self) -> str:
        return f"bytes, {self.entry} for each entry"


@dataclass(frozen=True)
class Several:
    """A list of as many as one of ``lengths`` (None: up to ``most``), each like ``item``."""

    item: Number | Text | Binary
    lengths: tuple[int, ...] | None = None
    most: int = 10**6

    def fits(self, value: object) -> bool:
        """Whether a value is such a list; its length is looked at first."""
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            return False
        if len(value) > self.most if self.lengths is None else len(value) not in self.lengths:
            return False
        return self.item.all_fit(value) if isinstance(self.item, Number) else all(map(self.item.fits, value))

    def __str__(self) -> str:
        many = f"at most {self.most}" if self.lengths is None else " or ".join(map(str, self.lengths))
        return f"a list of {many}, each {self.item}"


Value = Number | Text | Flag | Several | Binary
Schema = Mapping[str, Value]


def mistakes(record: Mapping[str, Any], schema: Schema, optional: Iterable[str] = ()) -> list[str]:
    """Return what is wrong with a record: keys that are missing or too many, and values; each in a few words."""
    unknown, optional = [key for key in record if key not in schema], set(optional)
    wrong = [f"{shown(key)} is no key that it may have" for key in unknown[:NAMED]]
    for key, allowed in schema.items():
        if key not in record:
            wrong += [f"{key} is missing: it must be {allowed}"] * (key not in optional)
        elif not allowed.fits(record[key]):
            wrong.append(f"{key} = {shown(record[key])}: must be {allowed}")
    return wrong


def in_a_line(wrong: Sequence[str]) -> str:
    """Return mistakes as one line: a few, and how many more there are; empty for none."""
    more = [f"and {len(wrong) - NAMED} more"] if len(wrong) > NAMED else []
    return "; ".join([*wrong[:NAMED], *more])
