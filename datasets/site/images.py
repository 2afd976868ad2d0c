"""The images that a site's labels.csv names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from datasets.errors import DataError
from datasets.image_cache import ImageCache
from datasets.images import MISSING, OUTSIDE, Faults, read_images
from datasets.site.table import as_text
from datasets.source import Bytes

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
    for row, listed in enumerate(as_text(frame["path"]), start=1):
        name, path = f"row {row} ({listed!r})", (base / listed).resolve()
        if not path.is_relative_to(base):
            faults.add(OUTSIDE, name)
        elif not path.is_file():
            faults.add(MISSING, name)
        else:
            files[name] = path
    return read_images(files, size, faults, problems, cache)
