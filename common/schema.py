"""What a record of a message may hold: a type of pydantic's for each key, checked before anything is used.

The sender is not trusted, so nothing is converted, and what is said of a value is short and printable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from annotated_types import Interval, MaxLen
from pydantic import AfterValidator, AllowInfNan, FailFast, Strict, StringConstraints, TypeAdapter, ValidationError

from edelweiss.common.options import key_of
from edelweiss.common.suggest import shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

NAMED = 3  # mistakes that a line names
LONGEST = 10**6  # list
BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}


class Schema(dict[str, Any]):
    """Types by key: annotations, such as `whole` and `words` make."""

    @cached_property
    def checks(self) -> dict[str, Callable[[Any], Any]]:
        """Pydantic's validators, made when a record is checked first."""
        return {key: _validator(kind) for key, kind in self.items()}


def printable(text: str, longest: int = 2000) -> str:
    """Return words that came from elsewhere in one line that does nothing to a terminal."""
    cut = text if len(text) <= longest else f"{text[:longest]}..."
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in cut)


class FirstMistake(FailFast):
    """Annotates a list, of which the first wrong item is enough; hashable, as what annotates a type should be."""

    __hash__ = object.__hash__


def must_be(text: str, fits: Callable[[Any], bool]) -> AfterValidator:
    """Annotate a type with a condition, which the text says."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise ValueError(f"must be {text}")
        return value

    return AfterValidator(check)


def is_file_name(text: object) -> bool:
    """Whether a file can be called so; on a terminal, too."""
    if not isinstance(text, str) or text in ("", ".", "..") or len(text) > 100:
        return False
    return "/" not in text and text.isprintable()


Printable = must_be("printable characters", str.isprintable)
List = (MaxLen(LONGEST), FirstMistake())
"""Annotates a list, of which the first wrong item is enough."""

# What follows is asked for with the same arguments for every message, and a type is compiled once.


@lru_cache(maxsize=1024)
def whole(low: int, high: int) -> Any:
    """Return the type of integers from ``low`` to ``high``."""
    return Annotated[int, Strict(), Interval(ge=low, le=high)]


@lru_cache(maxsize=1024)
def number(low: float = -math.inf, high: float = math.inf, *, nan: bool = False) -> Any:
    """Return the type of finite numbers from ``low`` to ``high``; ``nan`` whether it may be undefined."""
    if nan:
        ends = f"from {low:g} to {high:g}, or NaN"
        return Annotated[float, Strict(), must_be(ends, lambda x: x != x or (low <= x <= high and math.isfinite(x)))]
    return Annotated[float, Strict(), AllowInfNan(False), Interval(ge=low, le=high)]


@lru_cache(maxsize=1024)
def words(longest: int = 100, *, pattern: str | None = None) -> Any:
    """Return the type of texts of printable characters, as long as that at most."""
    return Annotated[str, StringConstraints(strict=True, max_length=longest, pattern=pattern), Printable]


@lru_cache(maxsize=1024)
def several(item: Any, lengths: tuple[int, ...] = (), *, most: int = LONGEST) -> Any:
    """Return the type of lists of items of one type, with one of these lengths, or of ``most`` items at most."""
    if not lengths:
        return Annotated[list[item], MaxLen(most), FirstMistake()]
    counted = must_be(f"a list of {' or '.join(map(str, lengths))}", lambda found: len(found) in lengths)
    return Annotated[list[item], MaxLen(max(lengths)), FirstMistake(), counted]


@lru_cache(maxsize=1024)
def binary(entry: int) -> Any:
    """Return the type of bytes, ``entry`` for each of several things."""
    return Annotated[bytes, Strict(), must_be(f"bytes, {entry} for each entry", lambda value: len(value) % entry == 0)]


def schema_of(cls: type) -> Schema:
    """Return the types of a dataclass that is sent as a record, see `common.records`."""
    hints = get_type_hints(cls, include_extras=True)
    return Schema({key_of(f.name): hints[f.name] for f in fields(cls)})


@lru_cache(maxsize=1024)
def _validator(kind: Any) -> Callable[[Any], Any]:
    return TypeAdapter(kind).validator.validate_python  # the adapter's own method takes twice as long


def mistakes(record: Mapping[str, Any], schema: Schema, optional: Iterable[str] = ()) -> list[str]:
    """Return what is wrong with a record: keys that are missing or too many, and values; each in a few words."""
    unknown, optional = [key for key in record if key not in schema], set(optional)
    wrong = [f"{shown(key)} is no key that it may have" for key in unknown[:NAMED]]
    for key, check in schema.checks.items():
        if key in record:
            try:
                check(record[key])
            except ValidationError as error:
                wrong.append(f"{key} = {shown(record[key])}: {in_words(error.errors()[0])}")
        elif key not in optional:
            wrong.append(f"{key} is missing")
    return wrong


def in_words(found: ErrorDetails) -> str:
    """Return what pydantic found, as a clause."""
    if found["type"] in BOUNDS:
        end, sign = BOUNDS[found["type"]]
        return f"must be {sign} {found['ctx'][end]:g}"
    text = found["msg"].removeprefix("Value error, ").replace("Input should", "must")
    return f"{text[0].lower()}{text[1:]}"


def in_a_line(wrong: Sequence[str]) -> str:
    """Return mistakes as one line: a few, and how many more there are; empty for none."""
    more = [f"and {len(wrong) - NAMED} more"] if len(wrong) > NAMED else []
    return "; ".join([*wrong[:NAMED], *more])
