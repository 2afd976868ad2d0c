"""Decoded images in a file that is mapped into memory: read once, never larger than the disk, shared by all runs."""

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
STALE = 24 * 3600.0  # seconds without a write after which a draft is nobody's
VERSION = 2  # raised when files are decoded into other pixels than before


@dataclass(frozen=True)
class ImageCache:
    """A folder of decoded images; one file for each set of image files, of which the latest stay.

    Beside it, ``.json``: which of the files were bad, and have no image in it, or odd.

    Parameters
    ----------
    folder
        Where they are; made when it is needed.
    bound
        Bytes that all of them may take.
    """

    folder: Path
    bound: int

    def place(self, files: Mapping[str, Path], form: ImageForm) -> Path:
        """Return where these images are, if they are: its name changes with any file's path, size or time."""
        digest = hashlib.sha256(f"{VERSION} {form}".encode())
        for path in files.values():
            found = path.stat()
            digest.update(f"\0{path}\0{found.st_size}\0{found.st_mtime_ns}".encode(errors="surrogateescape"))
        return self.folder / f"images-{digest.hexdigest()[:32]}.npy"

    def load(self, place: Path, faults: Faults, names: Sequence[str]) -> Bytes | None:
        """Map what is there, and note what was wrong with the files of these names; None if it cannot be read."""
        try:
            images: Bytes = np.load(place, mmap_mode="r")
            told = json.loads(notes(place).read_text())
            found = [(Kind(*kind), names[number], str(detail)) for kind, number, detail in told["found"]]
            count = len(names) - len({name for kind, name, _ in found if kind.level == "bad"})
        except (OSError, ValueError, EOFError, TypeError, LookupError):
            return None
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) < count or told["count"] != count:
            return None
        with contextlib.suppress(OSError):
            os.utime(place)  # it was used last
        faults.found += found
        return images[:count]

    def make(self, place: Path, shape: tuple[int, ...]) -> Bytes | None:
        """Return an array to fill, in a draft of this file; None if it would take more room than there is."""
        need = prod(shape)
        if need > self.bound:  # and what is there stays
            return None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in self.folder.glob("*.draft"):  # of a process that was stopped half-way, and not of one at work
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
            with draft.open("rb+") as file:  # a full disk is an error here, and would end the process in a mapping
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, draft.stat().st_size)
        except OSError:
            self.drop(images)
            return None
        return images

    def keep(
        self, place: Path, images: Bytes, count: int, found: Sequence[tuple[Kind, str, str]], names: Sequence[str]
    ) -> Bytes:
        """Give the filled draft its name, and return it for reading: the first ``count`` images are filled.

        ``found`` is what was wrong with the files of these names. Where it cannot be kept, what is mapped stays.
        """
        number = {name: number for number, name in enumerate(names)}
        told = [(kind, number[name], detail) for kind, name, detail in found]
        try:
            assert isinstance(images, np.memmap)
            images.flush()
            notes(place).write_text(json.dumps({"count": count, "found": told}))
            Path(str(images.filename)).replace(place)
            kept: Bytes = np.load(place, mmap_mode="r")
        except OSError:
            self.drop(images)
            return images[:count]
        return kept[:count]

    def drop(self, images: Bytes) -> None:
        """Remove a draft that could not be filled or kept; what is mapped of it lives on."""
        assert isinstance(images, np.memmap)
        Path(str(images.filename)).unlink(missing_ok=True)

    def _leave_room(self, need: int) -> None:
        """Remove the files that were used longest ago, until so many bytes more are within the bound."""
        files = sorted(self.folder.glob("images-*.npy"), key=lambda file: file.stat().st_mtime)
        taken = sum(file.stat().st_size for file in files)
        for file in files:
            if taken + need <= self.bound:
                break
            taken -= file.stat().st_size
            file.unlink()
            notes(file).unlink(missing_ok=True)


def notes(place: Path) -> Path:
    """Return the name of the file that says what was wrong."""
    return place.with_suffix(".json")
