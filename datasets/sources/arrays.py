"""Inputs and labels passed in Python, from the file that `datasets.given` wrote for a simulation."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from edelweiss.datasets.errors import DataError
from edelweiss.datasets.source import Source

FOLDER = Path(tempfile.gettempdir()) / f"edelweiss-data-{os.getuid()}"
"""A private folder of temporary files, for the duration of a run."""


def read_arrays(file: str) -> Source:
    """Read inputs, classes and, if given, the site of each sample.

    Raises
    ------
    DataError
        If the file is missing or of another kind.
    """
    from safetensors import safe_open

    try:
        with safe_open(file, "pt") as content:
            inputs, classes = content.get_tensor("inputs"), content.get_tensor("classes").numpy()
            owner = content.get_tensor("owner").numpy() if "owner" in content.keys() else None  # noqa: SIM118  no mapping
            names = tuple(json.loads(content.metadata()["names"]))
    except Exception as error:  # safetensors raises its own
        text = f"data-file {file} cannot be read: {error}{gone(file)}"
        raise DataError(text, "data-file cannot be read", key="data-file") from None
    return Source(inputs, classes, max(2, int(classes.max()) + 1), groups=owner, group_names=names)


def gone(file: str | Path) -> str:
    """Return a hint for a temporary file of data passed in Python; empty for other files."""
    return "; it held data passed in Python: pass them again as data=" * (Path(file).parent == FOLDER)
