"""Typed records of messages: frozen dataclasses to and from the flat mappings of Flower's ``ConfigRecord``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from edelweiss.common.options import key_of

T = TypeVar("T")


def to_record(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by key; tuples become lists, and None is left out."""
    values = {key: getattr(instance, name) for name, key in _keys(type(instance))}  # type: ignore[arg-type]
    return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items() if v is not None}


def from_record(cls: type[T], record: Mapping[str, Any], **others: Any) -> T:
    """Return a dataclass with fields from a record of `to_record` and from ``others``; other keys are ignored."""
    found = {name: record[key] for name, key in _keys(cls) if key in record}  # type: ignore[arg-type]
    return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in found.items()} | others)


@cache
def _keys(cls: Any) -> tuple[tuple[str, str], ...]:
    """Return the fields of a dataclass with their keys."""
    return tuple((f.name, key_of(f.name)) for f in fields(cls))


def records_in(content: Mapping[str, Any], kind: type[T]) -> dict[str, T]:
    """Return a message's records of a kind, by name; Flower's own views check and copy them at every access."""
    return {name: found for name, found in content.items() if isinstance(found, kind)}


def plain(content: Mapping[str, Any], name: str, kind: type[Any]) -> dict[str, Any]:
    """Return a record of a message as a dictionary: Flower's own type is ten times slower to read."""
    return dict(found.items()) if isinstance(found := content.get(name), kind) else {}


def record_in(content: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a record of a message; an empty one if there is none of this name and kind."""
    found = content.get(name)
    return found if isinstance(found, kind) else kind()
