"""Images in files, decoded into one array: headers first, so that nothing is decoded before all are in order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from math import prod
from pathlib import Path

import numpy as np

from datasets.errors import DataError, examples
from datasets.image_cache import ImageCache
from datasets.source import Bytes
from datasets.stored import let_go
from keys.files import is_file, reason
from keys.memory import free_memory

_BLOCK = 1024  # images whose pages are in memory before they are let go to the disk
_GREY = ("1", "L", "LA")
_BYTE_MODES = (*_GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")

OUTSIDE = ("lie outside the folder", "put copies of them into it")
MISSING = ("are missing", "put them there or remove their lines")
TWICE = ("are listed more than once", "leave one line of each")
_UNREADABLE = ("cannot be read", "replace them or leave them out")
_DEEP = ("have more than 8 bits a channel", "save them with 8")
_OTHER_SIZE = ("have another size than most", "set image-size, the side to which all images are then scaled")


class Faults:
    """What is wrong with images, by kind.

    Parameters
    ----------
    place, public
        The file or folder that names the images, for the site's own log and for everybody else.
    """

    def __init__(self, place: Path, public: str) -> None:
        self.place, self.public = place, public
        self._found: dict[tuple[str, str], list[str]] = {}  # what is wrong and how to mend it -> where

    def add(self, kind: tuple[str, str], name: str, detail: object = "") -> None:
        """Note an image; the kind says what is wrong with it and how to mend that."""
        self._found.setdefault(kind, []).append(f"{name}: {detail}" if detail else name)

    def errors(self) -> list[DataError]:
        """Return an error for each kind, which names the first few images."""
        return [
            DataError(
                f"{self.place}: images {wrong}: {examples(names)}; {mend}",
                f"{self.public}: {len(names)} images {wrong}",
            )
            for (wrong, mend), names in self._found.items()
        ]


def read_images(
    files: Mapping[str, Path], size: int, faults: Faults, problems: list[DataError], cache: ImageCache | None = None
) -> Bytes:
    """Decode images.

    Parameters
    ----------
    files
        By the name that a message has for each.
    size
        The side of the squares to return: each image is scaled until its shorter side has it (bilinear, with
        antialiasing), and its middle is kept. 0: the images, which then must have one size, stay as they are.
    faults
        What is wrong with images that are not among the files.
    problems
        Where to add what is wrong with any. If there is anything already, the files are looked at and not decoded.
    cache
        Where decoded images are kept; None, or without room for these: in memory.

    Returns
    -------
    images
        Shape (n, C, H, W): grey, C = 1, if all images are, else RGB. A byte per number; of a cache they are read-only.
        Nothing to rely on where there are problems.
    """
    images = np.zeros((0, 1, 1, 1), np.uint8)
    for name in (strange := {name for name, path in files.items() if not is_file(path)}):
        faults.add(_UNREADABLE, name, "no regular file")
    files = {name: path for name, path in files.items() if name not in strange}
    place = cache.place(files, size) if cache else None
    if cache and place and not faults.errors() and (kept := cache.load(place, len(files))) is not None:
        return kept
    shape = (len(files), *_shape(files, size, faults))
    drafted = cache.make(place, shape) if cache and place and not (problems or faults.errors()) else None
    found = faults.errors() or ([] if drafted is not None else _too_large(shape, faults))
    if not found and not problems:
        images = np.empty(shape, np.uint8) if drafted is None else drafted
        _decode(files, size, images, faults)
        found = faults.errors()
    problems += found
    if drafted is None or not cache or not place:
        return images
    if found:
        cache.drop(place)
        return images
    return cache.keep(place, drafted)


def _shape(files: Mapping[str, Path], size: int, faults: Faults) -> tuple[int, int, int]:
    """Return the channels, height and width that the images will have, from their headers."""
    from PIL import Image

    sizes: dict[str, tuple[int, int]] = {}
    grey = True
    for name, path in files.items():
        try:
            with Image.open(path) as image:
                sizes[name], mode = image.size, image.mode
        except Exception as error:  # whatever a damaged header leads to
            faults.add(_UNREADABLE, name, _reason(error))
            continue
        grey = grey and mode in _GREY
        if mode not in _BYTE_MODES:
            faults.add(_DEEP, name, f"mode {mode}")
    [(usual, _)] = Counter(sizes.values()).most_common(1) or [((1, 1), 0)]
    for name, (width, height) in sizes.items() if not size else ():
        if (width, height) != usual:
            faults.add(_OTHER_SIZE, name, f"{width}x{height}, most {usual[0]}x{usual[1]}")
    return (1 if grey else 3, *((size, size) if size else (usual[1], usual[0])))


def _too_large(shape: tuple[int, int, int, int], faults: Faults) -> list[DataError]:
    """Return what is wrong with images that would not fit into memory."""
    need, free = prod(shape), free_memory()
    if need <= free:
        return []
    count, channels, height, width = shape
    text = f"{count:,} images of {width}x{height} pixels and {channels} channels take {need / 1e9:,.1f} GB of memory"
    mend = f"set image-size, to {int((free / count / channels) ** 0.5)} at most"
    return [
        DataError(
            f"{faults.place}: {text}, and {free / 1e9:,.1f} GB are free; {mend}",
            f"{faults.public}: {text}, which is more than the site has; set image-size to less",
        )
    ]


def _decode(files: Mapping[str, Path], size: int, images: Bytes, faults: Faults) -> None:
    """Fill the array (n, C, H, W), with a thread for each processor: decoding holds no lock."""
    from PIL import Image, ImageOps

    channels, height, width = images.shape[1:]

    def decode(row: int, path: Path) -> Exception | None:
        try:
            with Image.open(path) as image:
                picture = image.convert("L" if channels == 1 else "RGB")
        except Exception as error:  # whatever a damaged image leads to
            return error
        if size:
            picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
        images[row] = np.asarray(picture).reshape(height, width, -1).transpose(2, 0, 1)
        return None

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        rows = iter(enumerate(files.items()))
        while block := list(islice(rows, _BLOCK)):
            found = pool.map(decode, [row for row, _ in block], [path for _, (_, path) in block])
            for (_, (name, _)), error in zip(block, found, strict=True):
                if error:
                    faults.add(_UNREADABLE, name, _reason(error))
            let_go(images)


def _reason(error: Exception) -> str:
    """Say why a file cannot be read, without its path."""
    from PIL import UnidentifiedImageError

    return "no image" if isinstance(error, UnidentifiedImageError) else reason(error)
