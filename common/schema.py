"""Schemas of records in messages: a pydantic type for each key, checked before a value is used.

The sender is not trusted: nothing is converted, and messages show values shortened and printable.
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

NAMED = 3  # errors in a line, at most
LONGEST = 10**6  # list
BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}


class Schema(dict[str, Any]):
    """Types by key, such as those of `whole` and `words`."""

    @cached_property
    def checks(self) -> dict[str, Callable[[Any], Any]]:
        """Pydantic's validators, built for the first record."""
        return {key: _validator(kind) for key, kind in self.items()}


def printable(text: str, longest: int = 2000) -> str:
    """Return a text of others on one line, shortened and without control characters."""
    cut = text if len(text) <= longest else f"{text[:longest]}..."
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in cut)


class FirstError(FailFast):
    """Annotates a list, whose validation stops at the first wrong item; hashable, unlike `FailFast`."""

    __hash__ = object.__hash__


def must_be(text: str, fits: Callable[[Any], bool]) -> AfterValidator:
    """Annotate a type with a condition, described by the text."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise ValueError(f"must be {text}")
        return value

    return AfterValidator(check)


def is_file_name(text: object) -> bool:
    """Whether a text is a file name that can be printed."""
    if not isinstance(text, str) or text in ("", ".", "..") or len(text) > 100:
        return False
    return "/" not in text and text.isprintable()


Printable = must_be("printable characters", str.isprintable)
List = (MaxLen(LONGEST), FirstError())
"""Annotates a list, whose validation stops at the first wrong item."""

# Cached, so that pydantic compiles each type once, not for every message.


@lru_cache(maxsize=1024)
def whole(low: int, high: int) -> Any:
    """Return the type of integers from ``low`` to ``high``."""
    return Annotated[int, Strict(), Interval(ge=low, le=high)]


@lru_cache(maxsize=1024)
def number(low: float = -math.inf, high: float = math.inf, *, nan: bool = False) -> Any:
    """Return the type of finite numbers from ``low`` to ``high``; ``nan``: NaN is allowed."""
    if nan:
        ends = f"from {low:g} to {high:g}, or NaN"
        return Annotated[float, Strict(), must_be(ends, lambda x: x != x or (low <= x <= high and math.isfinite(x)))]
    return Annotated[float, Strict(), AllowInfNan(False), Interval(ge=low, le=high)]


@lru_cache(maxsize=1024)
def words(longest: int = 100, *, pattern: str | None = None) -> Any:
    """Return the type of printable texts with up to ``longest`` characters."""
    return Annotated[str, StringConstraints(strict=True, max_length=longest, pattern=pattern), Printable]


@lru_cache(maxsize=1024)
def several(item: Any, lengths: tuple[int, ...] = (), *, most: int = LONGEST) -> Any:
    """Return the type of lists with one of these lengths, or up to ``most`` items."""
    if not lengths:
        return Annotated[list[item], MaxLen(most), FirstError()]
    counted = must_be(f"a list of {' or '.join(map(str, lengths))}", lambda found: len(found) in lengths)
    return Annotated[list[item], MaxLen(max(lengths)), FirstError(), counted]


@lru_cache(maxsize=1024)
def binary(entry: int) -> Any:
    """Return the type of bytes with a multiple of ``entry`` bytes."""
    return Annotated[bytes, Strict(), must_be(f"bytes, {entry} for each entry", lambda value: len(value) % entry == 0)]


def schema_of(cls: type) -> Schema:
    """Return the schema of a dataclass that is sent as a record, see `common.records`."""
    hints = get_type_hints(cls, include_extras=True)
    return Schema({key_of(f.name): hints[f.name] for f in fields(cls)})


@lru_cache(maxsize=1024)
def _validator(kind: Any) -> Callable[[Any], Any]:
    return TypeAdapter(kind).validator.validate_python  # the adapter's own method takes twice as long


def record_errors(record: Mapping[str, Any], schema: Schema, optional: Iterable[str] = ()) -> list[str]:
    """Return the errors of a record: unknown keys, missing keys and wrong values."""
    unknown, optional = [key for key in record if key not in schema], set(optional)
    wrong = [f"{shown(key)} is an unknown key" for key in unknown[:NAMED]]
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
    """Return an error of pydantic as a clause."""
    if found["type"] in BOUNDS:
        end, sign = BOUNDS[found["type"]]
        return f"must be {sign} {found['ctx'][end]:g}"
    text = found["msg"].removeprefix("Value error, ").replace("Input should", "must")
    return f"{text[0].lower()}{text[1:]}"


def in_a_line(wrong: Sequence[str]) -> str:
    """Return errors on one line: the first few and the number of others; empty for none."""
    more = [f"and {len(wrong) - NAMED} more"] if len(wrong) > NAMED else []
    return "; ".join([*wrong[:NAMED], *more])
