"""Reads the run-config from the ``pyproject.toml`` of a run's bundle (Flower's FAB, a zip file), and nothing else."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from edelweiss.common import ConfigError, flatten, shown, unknown
from edelweiss.common.files import toml_in

if TYPE_CHECKING:
    from edelweiss.common import Value

FILE = "pyproject.toml"
MOST = 2**20  # most bytes of it; ours has 31 kB, but a zip file of 1 MB may unpack to 1 GB
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # other methods may allocate unbounded memory
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, OSError, RuntimeError)


def run_config_in(bundle: bytes, changed: Mapping[str, Value]) -> dict[str, Value]:
    """Return the run-config: the bundle's defaults with the changes for this run.

    Parameters
    ----------
    bundle : bytes
        The bundle's content; untrusted.
    changed : mapping
        Changed values by key.

    Raises
    ------
    ValueError
        If it is no bundle, or its configuration is too large.
    """
    values: object = toml_in(_unpacked(bundle))
    for table in ("tool", "flwr", "app", "config"):
        values = values.get(table, {}) if isinstance(values, Mapping) else values
    try:
        config = flatten(values)  # type: ignore[arg-type]  # rejects anything but a table
    except ConfigError as error:
        raise ValueError("; ".join(error.problems)) from None
    if strange := [unknown("key", key, config) for key in changed if key not in config]:
        raise ValueError(strange[0])
    config |= changed
    if strange := [key for key, value in config.items() if not isinstance(value, (bool, int, float, str))]:
        raise ValueError(f"{shown(strange[0])} is not a number, text, true or false")
    return config


def _unpacked(bundle: bytes) -> bytes:
    """Unpack at most `MOST` bytes of the configuration."""
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as packed:
            found = packed.getinfo(FILE)
            if found.compress_type not in PLAIN:
                raise ValueError(f"its {FILE} has a compression method that bundles do not use")
            with packed.open(found) as file:
                content = file.read(MOST + 1)
    except BROKEN as error:
        raise ValueError(f"it is not a bundle: {error}") from None
    if len(content) > MOST:
        raise ValueError(f"its {FILE} has more than {MOST:,} bytes")
    return content
