"""The search path, downloads and decoded cache of data set files."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edelweiss.common import latest, shown
from edelweiss.common.files import as_path, is_file, reason
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.vision import import_torchvision

T = TypeVar("T")


def cache_folder() -> Path:
    """Return the folder for downloads and decoded images: EDELWEISS_CACHE, else ~/.cache/edelweiss."""
    return _folder("EDELWEISS_CACHE", os.environ.get("EDELWEISS_CACHE") or "~/.cache/edelweiss")


def _folder(name: str, text: str) -> Path:
    try:
        return as_path(text)
    except OSError as error:
        public = f"{name} names no folder: {reason(error)}"
        raise DataError(f"{name} = {shown(text)} names no folder: {reason(error)}", public) from None


@dataclass(frozen=True)
class SearchPath:
    """The search path of files, and whether they may be downloaded."""

    roots: tuple[Path, ...]  # folders, at least one, in the order of the search; downloads go to the last
    names: str  # their names in public messages, without paths
    download: bool  # whether missing files may be downloaded

    @classmethod
    def of(cls, data_root: str, download: bool) -> SearchPath:
        """Return a run's folder; where it names none, that of EDELWEISS_DATA, if set, and then the cache folder."""
        return _search_path(data_root, download, *map(os.environ.get, ("EDELWEISS_DATA", "EDELWEISS_CACHE", "HOME")))

    @property
    def target(self) -> Path:
        """The folder for downloads."""
        return self.roots[-1]

    def first(self, find: Callable[[Path], T | None]) -> T | None:
        """Return the first result of ``find`` over the folders."""
        return next((found for root in self.roots if (found := find(root)) is not None), None)

    def under(self, *folders: str) -> list[Path]:
        """Return these folders of each root; ``""`` is the root itself."""
        return [root / folder for root in self.roots for folder in folders]


@latest
def _search_path(data_root: str, download: bool, named: str | None, *_: str | None) -> SearchPath:
    """Return the search path for an environment, shared by the sites of a process."""
    if data_root:
        return SearchPath((_folder("data-root", data_root),), "data-root", download)
    if named:
        roots = (_folder("EDELWEISS_DATA", named), cache_folder())
        return SearchPath(roots, "EDELWEISS_DATA or the cache folder (data-root is empty)", download)
    return SearchPath((cache_folder(),), "the cache folder (data-root and EDELWEISS_DATA are empty)", download)


def from_torchvision(class_name: str, root: Path, download: bool = False, part: str = "train") -> tuple[Any, Any]:
    """Return both parts of a torchvision data set, selected by the argument `part` of its class."""
    make = getattr(import_torchvision().datasets, class_name)
    try:
        return make(root, **{part: True}, download=download), make(root, **{part: False}, download=download)
    except (OSError, RuntimeError, EOFError, HTTPException) as error:
        raise DataError(
            f"{class_name} under {root} cannot be used: {error}", f"{class_name} cannot be read or downloaded"
        ) from error


def downloaded(
    name: str, class_name: str, search_path: SearchPath, sought: Sequence[object], part: str = "train"
) -> tuple[Any, Any]:
    """Download a torchvision data set, or raise an error with the searched paths and the fix."""
    reason = "download is false"
    if search_path.download:
        try:
            return from_torchvision(class_name, search_path.target, download=True, part=part)
        except (DataError, ImportError) as error:
            reason = f"the download failed ({error})"
    raise DataError(
        f"{name} was not found and {reason}. Looked for:\n  " + "\n  ".join(map(str, sought)) + "\nPut the files "
        "there, set data-root to the folder that has them, or run once where the internet can be reached: "
        f'python -c "from torchvision.datasets import {class_name} as D; '
        f"[D('{search_path.target}', {part}=value, download=True) for value in (True, False)]\"",
        f"{name} was not found under {search_path.names} and could not be downloaded",
        key="data-root",
    )


def cached(
    name: str, files: Sequence[Path], names: Sequence[str], decode: Callable[[], Sequence[NDArray[Any]]]
) -> list[NDArray[Any]]:
    """Decode files once, and cache the result in the cache folder if it is writable.

    A change of one of the files makes the cache, of arrays with these names, stale.
    """
    if not all(map(is_file, files)):  # decoding reports it
        return list(decode())
    stamp = np.array([[stat.st_size, stat.st_mtime_ns] for stat in (file.stat() for file in files)])
    paths = "\n".join(str(file.resolve()) for file in files)
    cache = cache_folder() / f"{name}-{zlib.crc32(os.fsencode(paths)):08x}.npz"
    # A missing, stale, truncated or foreign cache is rebuilt.
    with (
        contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile),
        np.load(cache if is_file(cache) else io.BytesIO()) as old,
    ):
        if np.array_equal(old["stamp"], stamp):
            return [old[name] for name in names]
    decoded = list(decode())
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
            whole = Path(scratch) / cache.name  # the write is atomic
            arrays: dict[str, Any] = dict(zip(names, decoded, strict=True))
            np.savez(whole, stamp=stamp, **arrays)
            os.replace(whole, cache)
    return decoded
