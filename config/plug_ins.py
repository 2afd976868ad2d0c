"""Plug-ins of a run: objects that it names or was given, loaded where allowed and passed on to workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edelweiss.common import PlugInError, Registry, Value
from edelweiss.common.registry import find, is_importable, not_loaded, place_of
from edelweiss.datasets import SOURCES
from edelweiss.datasets.config import ARRAYS, OWN
from edelweiss.datasets.reading import outside_source
from edelweiss.models import MODELS
from edelweiss.problems import PROBLEMS
from edelweiss.problems.metrics import METRICS
from edelweiss.strategies import ALGORITHMS

KINDS: dict[str, Registry[Any]] = {
    "algorithm": ALGORITHMS,
    "problem": PROBLEMS,
    "model": MODELS,
    "dataset": SOURCES,
    "metrics": METRICS,
}
"""Run-config keys whose value may be a plug-in: ``module:name``, or the name of an entry point."""


def _renamed(flat: Mapping[str, Value], how: Callable[[Registry[Any], str], str]) -> dict[str, Value]:
    """Return a run-config with these names replaced; metrics are a list."""
    found = dict(flat)
    for key, registry in KINDS.items():
        if isinstance(value := flat.get(key), str):
            names = value.split(",") if key == "metrics" and value else [value]
            found[key] = ",".join(how(registry, name.strip() if key == "metrics" else name) for name in names)
    return found


def load_named(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Import the plug-ins that a run-config names, for callers who wrote it or allow it; return it with known names.

    Raises
    ------
    ConfigError
        If one cannot be imported or is not of its kind.
    """
    wrong: list[str] = []

    def loaded(registry: Registry[Any], name: str) -> str:
        try:
            return registry.load(name)
        except PlugInError as error:
            wrong.extend(error.problems)
            return name

    found = _renamed(flat, loaded)
    if wrong:
        raise PlugInError(*wrong)
    return found


def load_own(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Like `load_named`, for a run-config of somebody who runs it here: sites that the data set names are the run's."""
    found = load_named(flat)
    dataset = found.get("dataset")
    if found.get("resume") or not isinstance(dataset, str) or dataset not in SOURCES or dataset in SOURCES.built_in:
        return found
    sites = outside_source(dataset).group_names
    return {"partition": "sites", "sites": len(sites), **found} if sites else found


def not_known(flat: Mapping[str, Value]) -> dict[str, str]:
    """Return what a run-config names and this process does not know, by key; nothing is imported but entry points."""
    lacks: dict[str, str] = {}

    def noted(registry: Registry[Any], name: str) -> str:
        if name and registry.get(registry.alias(name)) is None and not (registry is SOURCES and name in (*OWN, ARRAYS)):
            lacks[next(key for key, each in KINDS.items() if each is registry)] = name
        return name

    _renamed(flat, noted)
    return lacks


def require_known(flat: Mapping[str, Value]) -> None:
    """Require that this process knows all that a file of a run names, see `not_known`.

    Raises
    ------
    PlugInError
        Naming what it does not know, and what to do about it.
    """
    if lacks := not_known(flat):
        raise PlugInError(not_loaded(lacks))


def as_known(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return a run-config with each known ``module:name`` replaced by its name in this process."""
    return _renamed(flat, lambda registry, name: registry.alias(name))


def named_outside(flat: Mapping[str, Value]) -> dict[str, str]:
    """Return the plug-ins that a run-config names, with the ``module:name`` of each; imports nothing.

    Objects are included only if another process could import them.
    """
    found: dict[str, str] = {}

    def add(registry: Registry[Any], name: str) -> str:
        thing = registry.given.get(registry.alias(name))
        if name in registry.built_in:
            return name
        if thing is None and (place := find(registry.kind, name)):
            found[name] = place
        elif thing is not None and is_importable(thing):
            found[name] = place_of(thing)
        return name

    _renamed(flat, add)
    return found


def package_of(found: str) -> str:
    """Return the top-level package of a ``module:name``."""
    return found.partition(":")[0].partition(".")[0]


def packages_of(flat: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the top-level packages of the plug-ins that a run-config names."""
    return tuple(sorted({package_of(found) for found in named_outside(flat).values()}))


def packed(flat: Mapping[str, Value] | None = None) -> bytes:
    """Return the plug-ins given to this process, for its workers: by name if importable, else by value.

    Parameters
    ----------
    flat : mapping, optional
        A run-config: only what it names, all of which must be sendable. By default all that can be sent: which of it
        a sweep's runs need shows later, and one that lacks something says so.

    Raises
    ------
    PlugInError
        If one cannot be pickled.
    """
    import cloudpickle

    named: set[tuple[str, str]] = set()

    def noted(registry: Registry[Any], name: str) -> str:
        named.add((registry.kind, registry.alias(name)))
        return name

    _renamed(flat or {}, noted)
    given = [
        (kind, name, thing)
        for kind, registry in Registry.all.items()
        for name, thing in registry.given.items()
        if flat is None or (kind, name) in named
    ]
    sendable, wrong = list(given), list[str]()
    for kind, name, thing in given:
        try:
            cloudpickle.dumps(thing)
        except Exception as error:  # whatever its state raises
            sendable = [each for each in sendable if each[:2] != (kind, name)]
            wrong.append(
                f"{kind} = {name!r} cannot be handed to another process ({type(error).__name__}: {error}): define it "
                "in a module, or take workers = 1"
            )
    if wrong and flat is not None:
        raise PlugInError(*wrong)
    return bytes(cloudpickle.dumps(sendable)) if sendable else b""


def unpack(given: bytes) -> None:
    """Register the plug-ins that another process was given."""
    if not given:
        return
    import cloudpickle

    for kind, name, thing in cloudpickle.loads(given):
        Registry.all[kind].give(thing, name)
