"""Inputs and labels that were given in Python, from the file that `datasets.given` wrote for a simulation."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from edelweiss.datasets.errors import DataError
from edelweiss.datasets.source import Source

FOLDER = Path(tempfile.gettempdir()) / f"edelweiss-data-{os.getuid()}"
"""Where such files lie while a run uses them: a private folder for temporary files."""


def read_arrays(file: str) -> Source:
    """Read inputs, classes and, where each sample has one, its site.

    Raises
    ------
    DataError
        When the file is not there, or is another.
    """
    from safetensors import safe_open

    try:
        with safe_open(file, "pt") as content:
            inputs, classes = content.get_tensor("inputs"), content.get_tensor("classes").numpy()
            owner = content.get_tensor("owner").numpy() if "owner" in content.keys() else None  # noqa: SIM118  no mapping
            names = tuple(json.loads(content.metadata()["names"]))
    except Exception as error:  # safetensors has errors of its own
        raise DataError(f"data-file {file} cannot be read: {error}{gone(file)}", "data-file cannot be read") from None
    return Source(inputs, classes, max(2, int(classes.max()) + 1), groups=owner, group_names=names)


def gone(file: str | Path) -> str:
    """Say what to do about a file that held Python objects, if it is one; else nothing."""
    return "; it held data that were given in Python: give them again, as data=" * (Path(file).parent == FOLDER)
