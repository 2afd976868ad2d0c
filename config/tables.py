"""Run-config keys that are options of algorithms and problems."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edelweiss.common import Value, by_name
from edelweiss.federation import Algorithm
from edelweiss.problems import PROBLEMS
from edelweiss.strategies import ALGORITHMS

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

SHARED: Mapping[str, FieldInfo] = Algorithm.declared
"""Options with the same meaning for every algorithm; they are top-level keys."""


@cache
def own_options(cls: type[Any]) -> Mapping[str, FieldInfo]:
    """Return the options in the table of an algorithm or a problem, by key."""
    shared = SHARED if issubclass(cls, Algorithm) else {}
    return MappingProxyType({key: f for key, f in cls.declared.items() if key not in shared})


def open_steps(algorithm: type[Algorithm]) -> list[str]:
    """Return the keys of an algorithm's step sizes that `federation.step_size` declares."""
    return [key for key, f in own_options(algorithm).items() if key.split("-")[0] == "lr" and f.default == 0]


def tables() -> dict[str, Mapping[str, FieldInfo]]:
    """Return the options of all algorithms and problems, by table; a table may be empty."""
    owners: list[Any] = [*ALGORITHMS.values(), *PROBLEMS.values()]
    return {name: own_options(cls) for name, cls in by_name(*owners).items()}


MOVED: dict[str, tuple[str, ...]] = {
    "prior": ("auc.prior", "auc-margin.prior"),
    "score": ("auc.score", "auc-margin.score"),
    "margin": ("auc-margin.margin", "auprc.margin"),
    "radius": ("robust.radius",),
    "robust-loss": ("robust.criterion",),
    "ways": ("maml.ways",),
    "shots": ("maml.shots",),
    "queries": ("maml.queries",),
    "inner-lr": ("maml.inner-lr",),
    "inner-steps": ("maml.inner-steps",),
    "test-inner-steps": ("maml.test-inner-steps",),
    "test-tasks": ("maml.test-tasks",),
    "inner-samples": ("invariant-logistic.inner-samples",),
    "sigma-ratio": ("invariant-logistic.sigma-ratio",),
    "dimension": ("saddle.dimension", "invariant-logistic.dimension"),
    "heterogeneity": ("saddle.heterogeneity",),
    "saddle-file": ("saddle.file",),
} | {
    f"{algorithm}.{old}": (f"{algorithm}.{new}",)
    for algorithm in ("fmgda", "fgda", "adafgda")
    for old, new in (("alpha", "fresh-weight"), ("beta", "fresh-weight-dual"))
}
"""Renamed keys of earlier releases, with their new names."""


def renamed(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return the keys of an earlier release's run under their new names; keys of other tables had no effect."""
    owners = {flat.get("problem", "auc"), flat.get("algorithm")}
    moved = {
        name: value for key, value in flat.items() for name in MOVED.get(key, ()) if name.partition(".")[0] in owners
    }
    return {key: value for key, value in flat.items() if key not in MOVED} | moved
