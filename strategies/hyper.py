"""Hyper-parameters as dataclass fields: a default, a meaning with the paper's symbol, a range; checked all at once."""

from __future__ import annotations

import math
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


LARGEST = 1e300  # finite, and an integer below it is a float


class StrategyError(ValueError):
    """Hyper-parameters that cannot be used; the message names each, its value and what is allowed."""


def hyper(default: float, doc: str, *, low: float = -math.inf, above: float = -math.inf, high: float = math.inf) -> Any:
    """Declare a number: its default, its meaning, and its range [low, high] or (above, high].

    An integer default makes it an integer.
    """
    return field(default=default, metadata={"doc": doc, "low": low, "above": above, "high": high})


def choice(default: str, doc: str, *options: str) -> Any:
    """Declare a word out of a few."""
    return field(default=default, metadata={"doc": doc, "options": options})


def file(doc: str, *suffixes: str) -> Any:
    """Declare the name of a file; empty for none."""
    return field(default="", metadata={"doc": doc, "suffixes": suffixes, "low": -math.inf, "above": -math.inf})


def problems_of(name: str, value: Any, kind: type, metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a value, if anything; ``name`` is the key as a user writes it."""
    if "options" in metadata:
        if value not in metadata["options"]:
            yield f"{name} = {value!r}: allowed are {', '.join(map(repr, metadata['options']))}"
        return
    number = (
        isinstance(value, int | float) and not isinstance(value, bool) and (kind is float or isinstance(value, int))
    )
    if "suffixes" in metadata:
        if not isinstance(value, str) or (value and not value.endswith(metadata["suffixes"])):
            yield f"{name} = {value!r}: must name a file with {' or '.join(metadata['suffixes'])} ({metadata['doc']})"
        return
    low, above, high = metadata["low"], metadata["above"], metadata["high"]
    inside = number and abs(value) <= LARGEST and low <= value <= high and value > above
    if not inside:
        bounds = [f"> {above:g}"] if above > -math.inf else [f">= {low:g}"] if low > -math.inf else []
        bounds += [f"<= {high:g}"] if high < math.inf else []
        noun = "an integer" if kind is int else "a finite number"
        yield f"{name} = {value!r}: must be {noun} {' and '.join(bounds)}".rstrip() + f" ({metadata['doc']})"


def check_fields(instance: Any, prefix: str = "") -> list[str]:
    """Return everything that is wrong with the hyper-parameters of a dataclass instance."""
    return [
        text
        for f in fields(instance)
        if f.init
        for text in problems_of(
            prefix + f.name.replace("_", "-"), getattr(instance, f.name), type(f.default), f.metadata
        )
    ]
