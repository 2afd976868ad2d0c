"""A run folder, read strictly: what is damaged, unfinished or of another version is a ValueError that says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from edelweiss.common import PlugInError
from edelweiss.common.files import is_file, json_in, read_file, read_json, read_toml, reason
from edelweiss.config import ConfigError, RunConfig, flatten
from edelweiss.config.plug_ins import require_known
from edelweiss.config.tables import renamed

if TYPE_CHECKING:
    from pathlib import Path

Record = dict[str, Any]
COSTS = {"round", "gradients", "samples", "bytes-down", "bytes-up"}  # in each line of a run
AGAIN = "do the run again with this version"


def read_config(folder: Path) -> RunConfig:
    """Read config.toml; ValueError if this release and process cannot read it."""
    file = folder / "config.toml"
    if not is_file(file):
        raise ValueError("not a run folder: it has no config.toml")
    try:
        if not (keys := renamed(flatten(read_toml(file)))):
            raise ValueError("it is empty")
        require_known(keys)
        return RunConfig.parse(keys)
    except PlugInError as error:
        raise ValueError(f"its config.toml: {'; '.join(error.problems)}") from None
    except ConfigError as error:
        why = f"it is of another version, or its config.toml was changed ({'; '.join(error.problems)})"
        raise ValueError(f"{why}: {AGAIN}") from None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"its config.toml cannot be read ({reason(error)}): {AGAIN}") from None


def read_records(folder: Path) -> list[Record]:
    """Read metrics.jsonl, a line per round; a run that ended in its first round has none."""
    file = folder / "metrics.jsonl"
    try:
        records = [json_in(line) for line in read_file(file).splitlines()] if os.path.lexists(file) else []
        for number, record in enumerate(records, start=1):
            whole = isinstance(record, dict) and record.keys() >= COSTS and _all_numbers(record)
            tables = whole and any(isinstance(record.get(key), dict) for key in (*COSTS, "seconds"))
            if not whole or tables or str(record["round"]) != str(number):
                raise ValueError(f"line {number} is not what a run writes after round {number}")
    except (OSError, ValueError) as error:
        raise ValueError(f"its metrics.jsonl is damaged ({reason(error)}): {AGAIN}") from None
    return records


def read_part(folder: Path, file: str) -> Record:
    """Read one of the JSON files; empty where an earlier or unfinished run lacks it."""
    try:
        found = read_json(folder / file) if os.path.lexists(folder / file) else {}
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError) as error:
        raise ValueError(f"its {file} is damaged ({reason(error)}): {AGAIN}") from None
    return found


def _all_numbers(value: Any) -> bool:
    """Whether there is nothing but numbers, and null for those that are not defined."""
    if isinstance(value, dict):
        return all(map(_all_numbers, value.values()))
    return value is None or isinstance(value, int | float)
