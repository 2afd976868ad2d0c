"""A cache of the latest result: sites that share a process receive the same values one after another."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Generic, TypeVar

T = TypeVar("T")


class latest(Generic[T]):  # noqa: N801  # a decorator, as functools.cache is
    """Decorate a function: its latest result is returned again for the same arguments.

    Arguments are the same if they are equal and of one type; dictionaries item by item, in order. Other mutable ones (a
    list, a record) must be the same object. None may change after the call.
    """

    def __init__(self, function: Callable[..., T]) -> None:
        self._function, self.__doc__ = function, function.__doc__  # not functools.wraps: one is made for each site
        self._known: tuple[tuple[object, ...], T] | None = None

    def __call__(self, *arguments: object) -> T:
        """Return the function's result."""
        known = self._known  # read once: another thread may replace it
        if known is None or not _same(known[0], arguments):
            known = self._known = arguments, self._function(*arguments)
        return known[1]

    def cache_clear(self) -> None:
        """Forget it."""
        self._known = None


def _same(known: tuple[object, ...], asked: tuple[object, ...]) -> bool:
    if len(known) != len(asked):
        return False
    if all(map(is_, known, asked)):  # the usual case, without a step of Python for each
        return True
    for a, b in zip(known, asked, strict=True):
        if a is b:
            continue
        if type(a) is dict and type(b) is dict:
            if not _same((*a, *a.values()), (*b, *b.values())):
                return False
        elif type(a) is not type(b) or a.__hash__ is None or a != b:
            return False
    return True
