"""Options as dataclass fields: a default, a meaning with the paper's symbol and unit, a range; checked all at once.

Algorithms and problems declare theirs like this. A field's name with dashes is its run-config key.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import Field, field, fields
from typing import TYPE_CHECKING, Any

from edelweiss.common.suggest import shorter, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


LARGEST = 1e38  # a float32
MOST = 10**9  # of anything that is counted, unless its range says otherwise
LONGEST = 4096  # characters of a text, as of a path


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


def files_named(cls: type, options: Mapping[str, Any]) -> list[str]:
    """Return the keys of options that name a file."""
    return [key for key, f in options_of(cls).items() if "suffixes" in f.metadata and options.get(key)]


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
        if not isinstance(value, str) or value not in f.metadata["options"]:
            yield f"{key} = {shown(value)}: allowed are {', '.join(map(repr, f.metadata['options']))}"
        return
    if "suffixes" in f.metadata:
        if not isinstance(value, str) or (value and not value.endswith(f.metadata["suffixes"])):
            yield f"{key} = {shown(value)}: must name a file with {allowed(f)} ({doc})"
        return
    low, above, high, below = (f.metadata[end] for end in ("low", "above", "high", "below"))
    whole = type(f.default) is int
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    most = MOST if whole and high == math.inf else LARGEST
    if not (number and abs(value) <= most and low <= value <= high and above < value < below):
        noun = "an integer" if whole else "a finite number"
        noun += f" up to {most:g}" if number and abs(value) > most else ""
        yield f"{key} = {shown(value)}: must be {noun} {allowed(f)}".rstrip() + f" ({doc})"


def is_number(value: object) -> bool:
    """Whether it is a number that a float32 holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def text_errors(key: str, value: Any) -> Iterator[str]:
    """Yield what no text may be, as it would end up in files and on terminals."""
    if isinstance(value, str):
        if len(value) > LONGEST:
            yield f"{shorter(key)} has {len(value):,} characters: may have {LONGEST:,}"
        elif any(unicodedata.category(each) in ("Cc", "Cs") for each in value if each not in "\n\t"):
            yield f"{shorter(key)} = {shown(value)}: may have no control characters, and none that are no Unicode"


def check_fields(instance: Any, prefix: str = "") -> list[str]:
    """Return everything that is wrong with the options of a dataclass instance."""
    return [
        text
        for key, f in options_of(type(instance)).items()
        for text in field_errors(prefix + key, getattr(instance, f.name), f)
    ]
