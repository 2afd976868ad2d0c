"""Registries: objects of one kind by name, built in, given to this process, or offered by installed packages.

A look-up never imports what a file or a message names; `Registry.load` does, for callers who trust the name. Entry
points of installed packages are found by their names, but not in a hospital's commands (`Registry.discovers`): its
policy says what may run.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, reduce
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeVar

from edelweiss.common.errors import PlugInError
from edelweiss.common.options import HasOptions, key_of
from edelweiss.common.suggest import closest, shown, unknown

T = TypeVar("T")


def by_name(*classes: Any) -> dict[str, Any]:
    """Return classes by their ``name``, in this order.

    Raises
    ------
    ValueError
        If two have the same name.
    """
    found: dict[str, Any] = {}
    for cls in classes:
        if cls.name in found:
            raise ValueError(f"{cls.__name__} and {found[cls.name].__name__} are both called {cls.name!r}")
        found[cls.name] = cls
    return found


class Registry(dict[str, T]):
    """Objects of one kind by name: built-in ones, then those given to this process.

    Parameters
    ----------
    kind : str
        Such as "algorithm", with the entry points ``edelweiss.algorithms``.
    rows : mapping
        The built-in objects.
    accept : callable
        Checks a plug-in, with the name that it was found by or "", and returns its name and row; raises `PlugInError`.

    Attributes
    ----------
    discovers : bool
        Whether all registries find entry points of installed packages.
    changes : int
        Number of changes to all registries: a cache of objects by name may be outdated.
    all : dict
        Every registry, by its kind.
    """

    discovers: ClassVar[bool] = True
    changes: ClassVar[int] = 0
    all: ClassVar[dict[str, Registry[Any]]] = {}

    def __init__(self, kind: str, rows: Mapping[str, T], accept: Callable[[str, Any], tuple[str, T]]) -> None:
        super().__init__(rows)
        self.kind, self._accept = kind, accept
        self.built_in = frozenset(rows)
        self.given: dict[str, object] = {}  # as it was given, by name
        self._aliases: dict[str, str] = {}  # by ``module:name``, or that of an entry point
        Registry.all[kind] = self

    # ------------------------------------------------------------------ a mapping

    def __missing__(self, name: str) -> T:
        if self.discovers and name in offered(self.kind):
            self.load(name)
        if super().__contains__(name):
            return self[name]
        raise KeyError(name)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return a row, also that of an entry point."""
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None

    def __setitem__(self, name: str, row: T) -> None:
        super().__setitem__(name, row)
        Registry.changes += 1

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.given.pop(name, None)
        Registry.changes += 1

    # ------------------------------------------------------------------ plug-ins

    def give(self, thing: object, name: str = "") -> str:
        """Register a plug-in; returns its name in run-configs.

        Raises
        ------
        PlugInError
            If it is not of this kind, or has a built-in name.
        """
        name, row = self._accept(name, thing)
        if name in self.built_in:
            text = f"{self.kind} {place_of(thing)} is called {name!r}, which is built in: give it another name"
            raise PlugInError(text)
        if self.given.get(name) is not thing:
            self.given[name] = thing
            self._aliases[place_of(thing)] = name
            self[name] = row
        return name

    def load(self, name: str) -> str:
        """Import an entry point or ``module:name`` unless it is registered; returns its name in run-configs.

        Raises
        ------
        PlugInError
            If it cannot be imported, or is not of this kind.
        """
        if super().__contains__(name):
            return name
        if (found := find(self.kind, name)) is None:
            return name  # a plain name, which a look-up refuses
        module, _, path = found.partition(":")
        try:
            thing = reduce(getattr, path.split("."), importlib.import_module(module))
        except Exception as error:  # of the module's own code, too
            text = f"{self.kind} = {shown(name)} cannot be imported: {type(error).__name__}: {error}"
            raise PlugInError(text) from error
        self._aliases[name] = self.give(thing, name)
        return self._aliases[name]

    def alias(self, name: str) -> str:
        """Return the name in run-configs of a registered ``module:name``."""
        return self._aliases.get(name, name)

    def missing(self, name: str) -> str:
        """Return the message for an unknown name."""
        if ":" in name:
            return (
                f"{self.kind} {shown(name)} is not loaded, and no file can make this process import it: name it "
                f"yourself, {self.kind} = {shown(name)}, or give the object in Python"
            )
        others = offered(self.kind) if self.discovers else {}
        return unknown(self.kind, name, dict.fromkeys([*self, *others]))


def not_loaded(names: Mapping[str, str]) -> str:
    """Say that a file names what this process does not know, by run-config key, and what to do about it."""
    lacks = [f"{key}={name if ':' in name else 'MODULE:NAME'}" for key, name in names.items()]
    given = " ".join(f"--plug-in {each}" for each in lacks)
    return (
        f"{', '.join(f'{key} = {shown(name)}' for key, name in names.items())}: not built in, and no file makes a "
        f"process import anything. Name it yourself ({given}; to resume, in --run-config), call ew.register in Python, "
        "or install a package that offers it as an entry point"
    )


def place_of(thing: object) -> str:
    """Return where a class or a function was defined, ``module:name``; another process finds it if `is_importable`."""
    own: Any = thing if hasattr(thing, "__qualname__") else getattr(thing, "func", type(thing))  # of a partial
    return f"{own.__module__}:{own.__qualname__}"


def is_importable(thing: object) -> bool:
    """Whether another process can import it by name."""
    module, _, path = place_of(thing).partition(":")
    try:
        return module != "__main__" and reduce(getattr, path.split("."), importlib.import_module(module)) is thing
    except (AttributeError, ImportError):
        return False


def find(kind: str, name: str) -> str | None:
    """Return the ``module:name`` of a name, without importing it; None for a plain name."""
    if ":" in name:
        return name
    found = offered(kind).get(name)
    return found.value if found else None


@cache
def offered(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages for a kind, by name."""
    return {found.name: found for found in entry_points(group=f"edelweiss.{kind}s")}


def require_declared(kind: str, thing: Any, base: type[HasOptions], how: str, says: Mapping[str, str]) -> None:
    """Check that a plug-in is a concrete class of a kind, declared by ``@dataclass(how)``.

    ``says`` is what it has to say of itself: attributes without a default, each with an example.

    Raises
    ------
    PlugInError
        If it is not.
    """
    name = place_of(thing)
    if isinstance(thing, base):
        raise PlugInError(f"{kind} {name} is an instance here: give the class, and its options as keys")
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise PlugInError(f"{kind} {name} must be a class derived from edelweiss.{base.__name__}")
    if inspect.isabstract(thing):
        lacks = ", ".join(sorted(getattr(thing, "__abstractmethods__", ())))
        raise PlugInError(f"{kind} {name} must write {lacks}")
    own = [n for n in inspect.get_annotations(thing) if key_of(n) in thing.declared]
    if own and "__dataclass_fields__" not in vars(thing):
        text = f"{kind} {name} declares {', '.join(own)}: put @dataclass({how}) above the class"
        raise PlugInError(text)
    if silent := [f"{key} = {example}" for key, example in says.items() if not hasattr(thing, key)]:
        raise PlugInError(f"{kind} {name} must say what it is for, such as {'; '.join(silent)}")


def require_kinds(kind: str, thing: Any, key: str, kinds: Iterable[object], known: Collection[str]) -> None:
    """Check the kinds of problems that a plug-in names under a key. An unknown one is its own unless it looks misspelt.

    Raises
    ------
    PlugInError
        If it does.
    """
    for each in kinds:
        if each not in known and (not isinstance(each, str) or not each or closest(each, known, 0.8)):
            raise PlugInError(f"{kind} {place_of(thing)}: {key}: {unknown('kind of problem', str(each), known)}")
