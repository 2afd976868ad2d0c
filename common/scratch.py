"""Temporary folders; making one removes those of killed processes."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path

PREFIX, LOCK = "edelweiss-", ".in-use"


class Scratch:
    """A temporary folder of this process and its forks.

    A file in it is locked while one of them lives; without the lock, the folder is left over.

    Attributes
    ----------
    path : Path
        The folder.
    """

    def __init__(self, place: str | None = None) -> None:
        sweep(place)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        fresh = self.path / "new"
        self._lock = fresh.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        fresh.rename(self.path / LOCK)  # it is locked before others can see it

    def __enter__(self) -> Path:
        """Return the folder."""
        return self.path

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        self.remove()

    def remove(self) -> None:
        """Remove the folder, now rather than at the end of a block."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep(place: str | None) -> None:
    """Remove folders that killed processes left."""
    for left in Path(place or tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            with left.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
        except OSError:  # it is in use, or owned by another user
            continue
