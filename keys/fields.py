"""Options as dataclass fields: a default, a meaning with the paper's symbol and unit, a range; checked all at once.

Algorithms and problems declare theirs like this. A field's name with dashes is its run-config key.
"""

from __future__ import annotations

import math
from dataclasses import Field, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


LARGEST = 1e300  # finite, and an integer below it is a float


def hyper(
    default: float,
    doc: str,
    *,
    low: float = -math.inf,
    above: float = -math.inf,
    high: float = math.inf,
    below: float = math.inf,
) -> Any:
    """Declare a number: its default, its meaning, and its range: from ``low`` or ``above``, to ``high`` or ``below``.

    ``low`` and ``high`` are allowed themselves, ``above`` and ``below`` are not. An integer default makes it an
    integer.
    """
    return field(default=default, metadata={"doc": doc, "low": low, "above": above, "high": high, "below": below})


def choice(default: str, doc: str, *options: str) -> Any:
    """Declare a word out of a few."""
    return field(default=default, metadata={"doc": doc, "options": options})


def filename(doc: str, *suffixes: str) -> Any:
    """Declare the name of a file; empty for none."""
    return field(default="", metadata={"doc": doc, "suffixes": suffixes})


def key_of(name: str) -> str:
    """Return a field's name as a run-config key."""
    return name.replace("_", "-")


def arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by key as a dataclass's arguments: the inverse of `key_of`."""
    return {key.replace("-", "_"): value for key, value in options.items()}


def options_of(cls: type) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass that are options, by key."""
    return {key_of(f.name): f for f in fields(cls) if "doc" in f.metadata}


def allowed(f: Field[Any]) -> str:
    """Say what a field's value may be: "> 0 and <= 1", "'a' | 'b'"; empty for any number."""
    if "options" in f.metadata:
        return " | ".join(map(repr, f.metadata["options"]))
    if "suffixes" in f.metadata:
        return " or ".join(f.metadata["suffixes"])
    signs = {"above": ">", "low": ">=", "below": "<", "high": "<="}
    return " and ".join(f"{sign} {f.metadata[end]:g}" for end, sign in signs.items() if math.isfinite(f.metadata[end]))


def field_errors(key: str, value: Any, f: Field[Any]) -> Iterator[str]:
    """Yield what is wrong with a field's value, if anything; ``key`` is what a user writes."""
    doc = f.metadata["doc"]
    if "options" in f.metadata:
        if value not in f.metadata["options"]:
            yield f"{key} = {value!r}: allowed are {', '.join(map(repr, f.metadata['options']))}"
        return
    if "suffixes" in f.metadata:
        if not isinstance(value, str) or (value and not value.endswith(f.metadata["suffixes"])):
            yield f"{key} = {value!r}: must name a file with {allowed(f)} ({doc})"
        return
    low, above, high, below = (f.metadata[end] for end in ("low", "above", "high", "below"))
    whole = type(f.default) is int
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not (number and abs(value) <= LARGEST and low <= value <= high and above < value < below):
        noun = "an integer" if whole else "a finite number"
        yield f"{key} = {value!r}: must be {noun} {allowed(f)}".rstrip() + f" ({doc})"


def check_fields(instance: Any, prefix: str = "") -> list[str]:
    """Return everything that is wrong with the options of a dataclass instance."""
    return [
        text
        for key, f in options_of(type(instance)).items()
        for text in field_errors(prefix + key, getattr(instance, f.name), f)
    ]
