"""The images that a site's labels.csv names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from datasets.errors import DataError
from datasets.image_cache import ImageCache
from datasets.images import MISSING, OUTSIDE, TWICE, Faults, read_images
from datasets.site.table import as_text
from datasets.source import Bytes
from keys import shown
from keys.files import is_file

if TYPE_CHECKING:
    import pandas as pd


def read_listed(
    frame: pd.DataFrame, file: Path, size: int, problems: list[DataError], cache: ImageCache | None
) -> Bytes:
    """Decode the images, (N, C, H, W), with a side of ``size`` (0: as they are); what is wrong goes to the problems."""
    if "path" not in frame.columns:
        problems.append(
            DataError(
                f"{file}: no column 'path'; columns: {', '.join(map(str, frame.columns))}",
                f"{file.name}: no column 'path'",
            )
        )
        return np.zeros((0, 1, 1, 1), np.uint8)
    base, faults = file.parent.resolve(), Faults(file, file.name)
    files: dict[str, Path] = {}
    first: dict[Path, int] = {}
    for row, listed in enumerate(as_text(frame["path"]), start=1):
        name = f"row {row} ({shown(listed)})"
        try:
            path = (base / listed).resolve()
        except (OSError, ValueError, RuntimeError):  # too long, with a NUL, a loop of links
            faults.add(MISSING, name)
            continue
        if not path.is_relative_to(base):
            faults.add(OUTSIDE, name)
        elif not is_file(path):
            faults.add(MISSING, name)
        elif path in first:
            faults.add(TWICE, name, f"as row {first[path]}")
        else:
            files[name] = path
            first[path] = row
    return read_images(files, size, faults, problems, cache)
