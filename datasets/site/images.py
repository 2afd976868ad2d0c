"""The images that a site's labels.csv names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from datasets.errors import DataError, examples
from datasets.site.table import as_text
from datasets.source import Bytes

if TYPE_CHECKING:
    import pandas as pd

_GREY = ("1", "L", "LA")
_BYTE_MODES = (*_GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def read_images(frame: pd.DataFrame, file: Path, problems: list[DataError]) -> Bytes:
    """Decode the images, (N, C, H, W); what is wrong goes to the problems."""
    nothing = np.zeros((0, 1, 1, 1), np.uint8)
    if "path" not in frame.columns:
        problems.append(
            DataError(
                f"{file}: no column 'path'; columns: {', '.join(map(str, frame.columns))}",
                f"{file.name}: no column 'path'",
            )
        )
        return nothing
    base = file.parent.resolve()
    paths = as_text(frame["path"])
    files = [(base / path).resolve() for path in paths]
    faults = _Faults(file, paths)
    # Headers first: sizes and modes are known before memory is taken for all pixels.
    size, grey = _headers(files, base, faults)
    images = nothing if faults.found or problems else _pixels(files, size, grey, faults)
    problems += faults.errors()
    return images


class _Faults:
    """What is wrong with the images, by kind."""

    def __init__(self, file: Path, paths: pd.Series) -> None:
        self.file, self.paths = file, paths
        self.found: dict[str, list[str]] = {}  # kind -> where

    def add(self, kind: str, row: int, detail: object = "") -> None:
        self.found.setdefault(kind, []).append(f"row {row + 1} ({self.paths.iloc[row]!r}{detail})")

    def errors(self) -> list[DataError]:
        return [
            DataError(
                f"{self.file}: images {kind}: {examples(where)}; put 8-bit images of one size into the folder, "
                "at the paths that the file gives",
                f"{self.file.name}: {len(where)} images {kind}",
            )
            for kind, where in self.found.items()
        ]


def _headers(files: Sequence[Path], base: Path, faults: _Faults) -> tuple[tuple[int, int], bool]:
    """Return the size that most images have, and whether all are grey."""
    from PIL import Image

    sizes: dict[int, tuple[int, int]] = {}
    grey = True
    for row, path in enumerate(files):
        if not path.is_relative_to(base):
            faults.add("lie outside the folder", row)
        elif not path.is_file():
            faults.add("are missing", row)
        else:
            try:
                with Image.open(path) as image:
                    sizes[row], mode = image.size, image.mode
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                faults.add("cannot be read", row, f": {error}")
                continue
            grey = grey and mode in _GREY
            if mode not in _BYTE_MODES:
                faults.add("have more than 8 bits a channel", row, f": mode {mode}")
    [(usual, _)] = Counter(sizes.values()).most_common(1) or [((1, 1), 0)]
    for row, size in sizes.items():
        if size != usual:
            faults.add("have another size than most", row, f": {size[0]}x{size[1]}, most {usual[0]}x{usual[1]}")
    return usual, grey


def _pixels(files: Sequence[Path], size: tuple[int, int], grey: bool, faults: _Faults) -> Bytes:
    """Decode images of one size."""
    from PIL import Image

    images = np.empty((len(files), 1 if grey else 3, size[1], size[0]), np.uint8)
    for row, path in enumerate(files):
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("L" if grey else "RGB"))
        except (OSError, ValueError, SyntaxError) as error:
            faults.add("cannot be read", row, f": {error}")
        else:
            images[row] = pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)
    return images
