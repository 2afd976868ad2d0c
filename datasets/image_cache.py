"""Decoded images in a file that is mapped into memory: read once, never larger than the disk, shared by all runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from datasets.image_faults import Faults, Kind
from datasets.image_file import ImageForm
from datasets.source import Bytes

SPARE = 2**30  # bytes that stay free on the disk
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
            for old in self.folder.glob("*.draft"):  # of a process that was stopped half-way
                old.unlink(missing_ok=True)
            self._leave_room(need)
            if need + SPARE > shutil.disk_usage(self.folder).free:
                return None
            return np.lib.format.open_memmap(draft(place), "w+", np.uint8, shape)
        except OSError:
            return None

    def keep(
        self, place: Path, images: Bytes, count: int, found: Sequence[tuple[Kind, str, str]], names: Sequence[str]
    ) -> Bytes:
        """Give the filled draft its name, and return it for reading: the first ``count`` images are filled.

        ``found`` is what was wrong with the files of these names.
        """
        assert isinstance(images, np.memmap)
        images.flush()
        number = {name: number for number, name in enumerate(names)}
        told = [(kind, number[name], detail) for kind, name, detail in found]
        notes(place).write_text(json.dumps({"count": count, "found": told}))
        draft(place).replace(place)
        kept: Bytes = np.load(place, mmap_mode="r")
        return kept[:count]

    def drop(self, place: Path) -> None:
        """Remove a draft that could not be filled."""
        draft(place).unlink(missing_ok=True)

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


def draft(place: Path) -> Path:
    """Return the name of a file that is being written."""
    return place.with_suffix(".draft")


def notes(place: Path) -> Path:
    """Return the name of the file that says what was wrong."""
    return place.with_suffix(".json")
