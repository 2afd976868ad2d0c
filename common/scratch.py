"""Temporary folders; those of processes that were killed go when the next one is made."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path

PREFIX, LOCK = "edelweiss-", ".in-use"


class Scratch:
    """A temporary folder of this process and its forks.

    A file in it is locked as long as one of them lives. Where nobody holds the lock any more, nobody was left to remove
    the folder.

    Parameters
    ----------
    place : str, optional
        Where to make it; None: where this machine has temporary files.

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
        fresh.rename(self.path / LOCK)  # nobody sees it before it is locked

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
    """Remove what killed processes left there."""
    for left in Path(place or tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            with left.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
        except OSError:  # it is in use, or somebody else's
            continue
