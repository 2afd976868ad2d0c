"""The keys that the code has, for tests of the run-config."""

from __future__ import annotations

from pydantic.fields import FieldInfo

from edelweiss.common import Value
from edelweiss.config import RunConfig
from edelweiss.config.tables import SHARED, own_options, tables
from edelweiss.problems import PROBLEMS

IN_TABLES: dict[str, FieldInfo] = {f"{name}.{key}": f for name, keys in tables().items() for key, f in keys.items()}
"""The options of all algorithms and problems, by their full key."""

KNOWN: dict[str, Value] = {key: f.default for key, f in {**RunConfig.keys(), **SHARED, **IN_TABLES}.items()}
"""Keys and defaults that the code has."""


def options_of(config: RunConfig) -> dict[str, Value]:
    """All options of the run's problem, given or not."""
    return {key: config.options.get(key, f.default) for key, f in own_options(PROBLEMS[config.problem]).items()}
