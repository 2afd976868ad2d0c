"""Decoding of image files into one array; all headers are checked before anything is decoded."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np

from edelweiss.common.cores import cores
from edelweiss.common.files import is_file
from edelweiss.common.memory import free_memory
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.image_cache import ImageCache
from edelweiss.datasets.image_faults import MISNAMED, OTHER_SIZE, PASSING, TWIN, UNREADABLE, BadImageError, Faults
from edelweiss.datasets.image_file import Header, ImageForm, header, pixels
from edelweiss.datasets.memory_mapped import release_pages
from edelweiss.datasets.source import Bytes

T = TypeVar("T")
AT_ONCE = 1024  # files queued for the threads, and decoded before pages are released


def read_images(
    files: Mapping[str, Path],
    form: ImageForm,
    faults: Faults,
    problems: list[DataError],
    cache: ImageCache | None = None,
) -> Bytes:
    """Decode images to 8 bits, see `datasets.image_file.pixels`; return those of good files, shape (n, C, H, W).

    Faults of the files, by their names in messages, are added to `faults`, and errors to `problems`: with any the
    result is undefined, and with earlier ones nothing is decoded. From a cache the array is read-only; without one, or
    without space in it, it is in memory.
    """
    for name in (strange := dict.fromkeys(name for name, path in files.items() if not is_file(path))):
        faults.add(UNREADABLE, name, "not a regular file")
    files = {name: path for name, path in files.items() if name not in strange}
    before = len(faults.found)
    place = cache.place(files, form) if cache else None
    if cache and place and not faults.errors() and (kept := cache.load(place, faults, list(files))) is not None:
        problems += faults.errors()
        return kept
    images = np.zeros((0, 1, 1, 1), np.uint8)
    shape, good = _shape(files, form, faults)
    drafted = cache.make(place, shape) if cache and place and not (problems or faults.errors()) else None
    found = faults.errors() or ([] if drafted is not None else _too_large(shape, faults))
    if not found and not problems:
        images = np.empty(shape, np.uint8) if drafted is None else drafted
        images = images[: _decode(good, form, images, faults)]
        found = faults.errors()
    problems += found
    if drafted is None or not cache or not place:
        return images
    new = faults.found[before:]
    if found or any(kind in PASSING for kind, *_ in new):
        cache.drop(drafted)
        return images
    return cache.keep(place, drafted, len(images), new, list(files))


def headers(files: Mapping[str, Path], faults: Faults) -> dict[str, Header]:
    """Read the headers of files by name; unreadable ones are added to the faults."""
    found: dict[str, Header] = {}
    for name, path, head in _each(lambda _, path: header(path), files):
        if isinstance(head, BadImageError):
            faults.add(head.kind, name, head.detail)
            continue
        found[name] = head
        if not head.as_named(path):
            faults.add(MISNAMED, name, head.format)
    return found


def _shape(
    files: Mapping[str, Path], form: ImageForm, faults: Faults
) -> tuple[tuple[int, int, int, int], dict[str, Path]]:
    """Return the common shape of the images, from their headers, and the files without faults."""
    heads = headers(files, faults)
    sizes = {name: (head.width, head.height) for name, head in heads.items()}
    [(usual, _)] = Counter(sizes.values()).most_common(1) or [((1, 1), 0)]
    for name, (width, height) in sizes.items() if not form.size else ():
        if (width, height) != usual:
            faults.add(OTHER_SIZE, name, f"{width}x{height}, most {usual[0]}x{usual[1]}")
    grey = all(head.grey for head in heads.values()) if form.colour == "auto" else form.colour == "grey"
    height, width = (form.size, form.size) if form.size else usual[::-1]
    return (len(heads), 1 if grey else 3, height, width), {name: files[name] for name in heads}


def _too_large(shape: tuple[int, int, int, int], faults: Faults) -> list[DataError]:
    """Return an error if the images do not fit into memory."""
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


def _decode(files: Mapping[str, Path], form: ImageForm, images: Bytes, faults: Faults) -> int:
    """Fill the array (n, C, H, W) without gaps for bad images; return the number of images."""
    rows = {name: row for row, name in enumerate(files)}
    grey = images.shape[1] == 1

    def decode(name: str, path: Path) -> bytes:
        image = images[rows[name]] = pixels(path, form, grey)
        return hashlib.blake2b(image.tobytes(), digest_size=16).digest()

    count, first = 0, dict[bytes, str]()
    for place, (name, _, shows) in enumerate(_each(decode, files)):
        if not place % AT_ONCE:
            release_pages(images)
        if isinstance(shows, BadImageError):
            faults.add(shows.kind, name, shows.detail)
            continue
        if (other := first.setdefault(shows, name)) != name:
            faults.add(TWIN, name, f"as {other}")
        if rows[name] != count:
            images[count] = images[rows[name]]
        count += 1
    return count


def _each(
    function: Callable[[str, Path], T], files: Mapping[str, Path]
) -> Iterator[tuple[str, Path, T | BadImageError]]:
    """Yield the result or error of a function for each file, in order, with a thread per core."""

    def tried(name: str, path: Path) -> T | BadImageError:
        try:
            return function(name, path)
        except BadImageError as error:
            return error

    entries = list(files.items())
    with warnings.catch_warnings(), ThreadPoolExecutor(cores()) as pool:
        warnings.simplefilter("ignore")  # Pillow's and pydicom's, about readable files
        for start in range(0, len(entries), AT_ONCE):
            part = entries[start : start + AT_ONCE]
            for (name, path), result in zip(part, pool.map(tried, *zip(*part, strict=True)), strict=True):
                yield name, path, result
