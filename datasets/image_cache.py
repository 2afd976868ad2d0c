"""A cache of decoded images in memory-mapped files, shared by all runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from edelweiss.datasets.image_faults import Faults, Kind
from edelweiss.datasets.image_file import ImageForm
from edelweiss.datasets.source import Bytes

SPARE = 2**30  # bytes that stay free on the disk
STALE = 24 * 3600.0  # seconds without a write after which a draft is abandoned
VERSION = 3  # raised when decoding changes


@dataclass(frozen=True)
class ImageCache:
    """A folder of decoded images, one file per set of image files, with eviction of the least recently used.

    A ``.json`` file beside each lists the image files that were bad, and so have no image in it, or odd.
    """

    folder: Path  # the folder, created when needed
    bound: int  # size limit of all files, in bytes

    def place(self, files: Mapping[str, Path], form: ImageForm) -> Path:
        """Return the cache path of these images; it depends on the files' paths, sizes and times."""
        digest = hashlib.sha256(f"{VERSION} {form}".encode())
        for path in files.values():
            found = path.stat()
            digest.update(f"\0{path}\0{found.st_size}\0{found.st_mtime_ns}".encode(errors="surrogateescape"))
        return self.folder / f"images-{digest.hexdigest()[:32]}.npy"

    def load(self, place: Path, faults: Faults, names: Sequence[str]) -> Bytes | None:
        """Map cached images and add the recorded faults of their files; None if the cache cannot be read."""
        try:
            images: Bytes = np.load(place, mmap_mode="r")
            noted = json.loads(notes(place).read_text())
            found = [(Kind(*kind), names[number], str(detail)) for kind, number, detail in noted["found"]]
            count = len(names) - len({name for kind, name, _ in found if kind.level == "bad"})
        except (OSError, ValueError, EOFError, TypeError, LookupError):
            return None
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) < count or noted["count"] != count:
            return None
        with contextlib.suppress(OSError):
            os.utime(place)  # most recently used
        faults.found += found
        return images[:count]

    def make(self, place: Path, shape: tuple[int, ...]) -> Bytes | None:
        """Return an array to fill, in a draft of this file; None without enough space."""
        need = prod(shape)
        if need > self.bound:  # nothing is evicted
            return None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in self.folder.glob("*.draft"):  # of interrupted processes
                if time.time() - old.stat().st_mtime > STALE:
                    old.unlink(missing_ok=True)
            self._leave_room(need)
            if need + SPARE > shutil.disk_usage(self.folder).free:
                return None
            draft = place.with_suffix(f".{secrets.token_hex(8)}.draft")  # another process may decode the same images
            images = np.lib.format.open_memmap(draft, "w+", np.uint8, shape)
        except OSError:
            return None
        try:
            with draft.open("rb+") as file:  # a full disk is an error here, not a crash
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, draft.stat().st_size)
        except OSError:
            self.drop(images)
            return None
        return images

    def keep(
        self, place: Path, images: Bytes, count: int, found: Sequence[tuple[Kind, str, str]], names: Sequence[str]
    ) -> Bytes:
        """Move the filled draft into place and return its first ``count`` images.

        ``found`` lists the faults of the files. If the draft cannot be moved, its mapping is returned.
        """
        number = {name: number for number, name in enumerate(names)}
        faults = [(kind, number[name], detail) for kind, name, detail in found]
        try:
            assert isinstance(images, np.memmap)
            images.flush()
            notes(place).write_text(json.dumps({"count": count, "found": faults}))
            Path(str(images.filename)).replace(place)
            kept: Bytes = np.load(place, mmap_mode="r")
        except OSError:
            self.drop(images)
            return images[:count]
        return kept[:count]

    def drop(self, images: Bytes) -> None:
        """Remove a draft; existing mappings stay valid."""
        assert isinstance(images, np.memmap)
        Path(str(images.filename)).unlink(missing_ok=True)

    def _leave_room(self, need: int) -> None:
        """Evict the least recently used files until ``need`` more bytes are within the bound."""
        files = sorted(self.folder.glob("images-*.npy"), key=lambda file: file.stat().st_mtime)
        taken = sum(file.stat().st_size for file in files)
        for file in files:
            if taken + need <= self.bound:
                break
            taken -= file.stat().st_size
            file.unlink()
            notes(file).unlink(missing_ok=True)


def notes(place: Path) -> Path:
    """Return the path of the recorded faults."""
    return place.with_suffix(".json")
