"""The caches of a process, which one object clears."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from edelweiss.common.latest import latest

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

T = TypeVar("T")


class ProcessCache:
    """The caches of a process, cleared at the end of a run or when a file changes.

    Results that depend on code alone, such as the header of a file format, are cached elsewhere and stay.
    """

    def __init__(self) -> None:
        self._clear: list[Callable[[], None]] = []

    def keeps(self, most: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
        """Decorate a function with a cache of its results for the last ``most`` arguments."""

        def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
            cached = lru_cache(maxsize=most)(function)
            self._clear.append(cached.cache_clear)
            return cached

        return decorate

    def latest(self, function: Callable[..., T]) -> latest[T]:
        """Decorate a function with a cache of its latest result, see `common.latest`."""
        cached = latest(function)
        self._clear.append(cached.cache_clear)
        return cached

    def forget(self) -> None:
        """Clear them."""
        for clear in self._clear:
            clear()


PROCESS_CACHE = ProcessCache()
