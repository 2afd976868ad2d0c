"""Registries: classes by the names that they bear."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T", bound=type[Any])


def by_name(*classes: T) -> dict[str, T]:
    """Return classes by their ``name``, in this order.

    Raises
    ------
    ValueError
        When two have the same: one would replace the other without a word.
    """
    found: dict[str, T] = {}
    for cls in classes:
        if cls.name in found:
            raise ValueError(f"{cls.__name__} and {found[cls.name].__name__} are both called {cls.name!r}")
        found[cls.name] = cls
    return found
