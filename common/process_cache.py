"""What a process keeps of the run that it serves: one object knows every function that remembers what it returned."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from edelweiss.common.latest import latest

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

T = TypeVar("T")


class ProcessCache:
    """The caches of a process. Whoever ends a run, or changes a file that was read, empties all of them at once.

    What follows from the code alone, such as the header of a file format, is no part of a run and stays.
    """

    def __init__(self) -> None:
        self._clear: list[Callable[[], None]] = []

    def keeps(self, most: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
        """Decorate a function: what it returned for the last arguments, at most so many, is returned again."""

        def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
            cached = lru_cache(maxsize=most)(function)
            self._clear.append(cached.cache_clear)
            return cached

        return decorate

    def latest(self, function: Callable[..., T]) -> latest[T]:
        """Decorate a function: what it returned last is returned again for the same arguments, see `common.latest`."""
        cached = latest(function)
        self._clear.append(cached.cache_clear)
        return cached

    def forget(self) -> None:
        """Empty them: what is asked for next is read and made anew."""
        for clear in self._clear:
            clear()


PROCESS_CACHE = ProcessCache()
