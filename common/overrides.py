"""Run-configs as users write them: nested or flat tables, TOML files, ``key=value`` pairs.

Here, not in `config`, for commands that do without torch: `lab.submission`, ``bin/run.py``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from edelweiss.common.errors import ConfigError
from edelweiss.common.files import DEEP, DEEPEST, depth, is_file, read_toml, reason, toml_in
from edelweiss.common.suggest import repeated, shorter, shown

Value = bool | int | float | str
"""Type of a run-config value in Flower."""

_PAIR = re.compile(r"""(?<!\S)([^\s=]+)=('[^']*'|"[^"]*"|\S+)""")  # as Flower's parser finds them


def flatten(nested: Mapping[str, Any]) -> dict[str, Value]:
    """Turn ``{"codasca": {"lr": 1}}`` into ``{"codasca.lr": 1}``.

    Raises
    ------
    ConfigError
        If it is not a table of keys, or nested too deeply.
    """
    given: Any = nested
    if not isinstance(given, Mapping):
        text = f"{shown(given)}: must be a table of keys and values, such as {{'rounds': 3}}"
        raise ConfigError("run-config", [text])
    if depth(nested) > DEEPEST:
        raise ConfigError("run-config", [DEEP])
    if odd := [key for key in nested if not isinstance(key, str)]:
        raise ConfigError("run-config", [f"{shown(key)}: a key must be text" for key in odd])
    flat: dict[str, Value] = {}
    twice: list[str] = []
    for key, value in nested.items():
        found = {f"{key}.{k}": v for k, v in flatten(value).items()} if isinstance(value, dict) else {key: value}
        twice += [name for name in found if name in flat]
        flat |= found
    if wrong := [f"{shorter(name)} is given twice, once in a table: leave one out" for name in twice]:
        raise ConfigError("run-config", wrong)
    return flat


def read_overrides(arguments: list[str]) -> dict[str, Value]:
    """Parse ``--run-config`` values: TOML files and ``key=value`` pairs, as ``flwr run`` reads them; later ones win.

    Raises
    ------
    ConfigError
        For missing or invalid files and pairs; all problems at once.
    """
    values: dict[str, Value] = {}
    wrong: list[str] = []
    for text in arguments:
        try:
            values |= _read_file(text) if _names_file(text) else _read_pairs(text)
        except ConfigError as error:
            wrong += error.problems
    allowed = "must be a finite number, true or false, or text in quotes"
    wrong += [f"{shorter(k)} = {shown(v)}: {allowed}" for k, v in values.items() if not _is_plain(v)]
    if wrong:
        raise ConfigError("--run-config", wrong)
    return values


def _is_plain(value: object) -> bool:
    return isinstance(value, Value) and not (isinstance(value, float) and not math.isfinite(value))


def with_resumed(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return a run-config over that of the run in its key ``resume``, if any.

    Raises
    ------
    ConfigError
        If that cannot be read or is empty.
    """
    named = flat.get("resume")
    file = f"{named}/config.toml" if named and isinstance(named, str) else ""
    if not is_file(file):
        return dict(flat)
    if not (began := _read_file(file)):
        text = "it is empty: bring back what the run wrote, or start the run anew"
        raise ConfigError("run-config", [f"resume = {shown(named)}: {shorter(file)}: {text}"])
    began.pop("started-by", None)  # another person may let it go on
    return {**began, **flat}


def _names_file(text: str) -> bool:
    """Whether a text names a file, and is not a key=value pair with a file name."""
    return text.endswith(".toml") and ("=" not in text or is_file(text))


def _read_file(name: str) -> dict[str, Value]:
    try:
        values = read_toml(name)
    except (OSError, ValueError) as error:
        raise ConfigError("--run-config", [f"{shorter(name)}: {reason(error)}"]) from None
    return flatten(values)


def _read_pairs(text: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    wrong: list[str] = []
    # Flower's parser silently skips other text, such as `rounds 3`.
    if rest := _PAIR.sub(" ", text).split():
        wrong.append(f"{shown(' '.join(rest))} is not a key=value pair: write 'rounds=3 algorithm=\"fedavg\"'")
    pairs, keys = _PAIR.findall(text), list[str]()
    for key, value in pairs:
        try:
            found = flatten(toml_in(f"{key} = {value}".encode()))
            keys += found
            values |= found
        except ConfigError as error:
            wrong += error.problems
        except ValueError:
            key, value = shorter(key), shorter(value)
            wrong.append(
                f"{key}={value}: must be a number, true or false; text needs quotes, as in '{key}=\"{value}\"'"
            )
    wrong += [f"{key} is given twice: leave one out" for key in repeated(keys)]
    if wrong:
        raise ConfigError("--run-config", wrong)
    return values


def to_toml(values: Mapping[str, Value]) -> str:
    """Return flat keys as TOML, tables last; `flatten` is the inverse after parsing."""
    tables: dict[str, list[str]] = {"": []}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {toml_value(value)}")
    parts = ["\n".join(([f"[{table}]"] if table else []) + lines) for table, lines in tables.items() if lines]
    return "\n\n".join(parts) + "\n"


def toml_value(value: Value) -> str:
    """Return a value in TOML: as JSON without surrogate pairs and DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
