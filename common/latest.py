"""What was worked out last, for whoever asks for the same next: sites that share a process are told the same things."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Generic, TypeVar

T = TypeVar("T")


class latest(Generic[T]):  # noqa: N801  # a decorator, as functools.cache is
    """Keep what a function returned last, and return it again for the same arguments.

    Values are the same if they are equal and of one type; what can change (a list, a record) only if it is the same
    object, and nobody may have changed it since.
    """

    def __init__(self, function: Callable[..., T]) -> None:
        self._function, self.__doc__ = function, function.__doc__  # no more: one is made for each site
        self._known: tuple[tuple[object, ...], T] | None = None

    def __call__(self, *arguments: object) -> T:
        """Return what the function returns."""
        known = self._known  # looked at once: another thread may ask for something else meanwhile
        if known is None or not _same(known[0], arguments):
            known = self._known = arguments, self._function(*arguments)
        return known[1]

    def cache_clear(self) -> None:
        """Forget it."""
        self._known = None


def _same(known: tuple[object, ...], asked: tuple[object, ...]) -> bool:
    if len(known) == len(asked) and all(map(is_, known, asked)):
        return True
    return len(known) == len(asked) and all(
        a is b or (type(a) is type(b) and a.__hash__ is not None and a == b) for a, b in zip(known, asked, strict=True)
    )
