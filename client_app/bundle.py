"""What a site reads of a run's bundle (Flower's FAB, a zip file): the run-config in its ``pyproject.toml``, no more."""

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
MOST = 2**20  # bytes of it: ours has 31 kB, and a zip file of 1 MB may hold 1 GB
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others unpack blocks, or claim memory, of any size
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, OSError, RuntimeError)


def run_config_in(bundle: bytes, changed: Mapping[str, Value]) -> dict[str, Value]:
    """Return the run-config: the defaults of a bundle, and what was changed by who started the run.

    Parameters
    ----------
    bundle : bytes
        The bundle's content. It may be anything: whoever may start runs has made it.
    changed : mapping
        Other values of its keys.

    Raises
    ------
    ValueError
        When the bundle is none, or its configuration is too large.
    """
    values: object = toml_in(_unpacked(bundle))
    for table in ("tool", "flwr", "app", "config"):
        values = values.get(table, {}) if isinstance(values, Mapping) else values
    try:
        config = flatten(values)  # type: ignore[arg-type]  # which refuses what is no table
    except ConfigError as error:
        raise ValueError("; ".join(error.problems)) from None
    if strange := [unknown("key", key, config) for key in changed if key not in config]:
        raise ValueError(strange[0])
    config |= changed
    if strange := [key for key, value in config.items() if not isinstance(value, (bool, int, float, str))]:
        raise ValueError(f"{shown(strange[0])} is no number, text, true or false")
    return config


def _unpacked(bundle: bytes) -> bytes:
    """Return the bytes of the configuration; no more than `MOST` of them are ever unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as packed:
            found = packed.getinfo(FILE)
            if found.compress_type not in PLAIN:
                raise ValueError(f"its {FILE} is packed by another method than a bundle's")
            with packed.open(found) as file:
                content = file.read(MOST + 1)
    except BROKEN as error:
        raise ValueError(f"it is no bundle: {error}") from None
    if len(content) > MOST:
        raise ValueError(f"its {FILE} has more than {MOST:,} bytes")
    return content
