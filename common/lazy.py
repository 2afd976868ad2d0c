"""Names of a package that are loaded when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from edelweiss.common.memory import collecting_rarely


def first_used(package: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's ``__getattr__``.

    Parameters
    ----------
    package : dict of str to Any
        The package's ``globals()``.
    homes : mapping of str to str
        The names, with spaces between them, by the module that defines them.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        with collecting_rarely():  # of what is imported, nothing is garbage
            package[name] = found = getattr(import_module(home[name]), name)
        return found

    return load
