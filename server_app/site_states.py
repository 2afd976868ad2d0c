"""The memories of the local engine's sites: files in shared memory or on disk."""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.client_app.memory import forget_all_but_last, memory_folder, path_of, positions, run_folder
from edelweiss.common import shown
from edelweiss.common.files import as_path, is_file, reason, unwritable
from edelweiss.common.memory import free_memory
from edelweiss.common.scratch import Scratch
from edelweiss.federation import RunError
from edelweiss.models.storage import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.config import RunConfig

ROOM = 2**30  # bytes that must be free in /dev/shm to use it; containers often have 64 MB there


def state_dir(config: RunConfig) -> Path | None:
    """Return the folder that ``state-dir`` names, or None.

    Raises
    ------
    RunError
        If it is unusable.
    """
    if not (given := config.state_dir):
        return None
    try:
        folder = as_path(given).absolute()
        wrong = unwritable(folder)
    except OSError as error:
        wrong = reason(error)
    if wrong:
        text = f"state-dir = {shown(given)}: the sites cannot write there ({wrong}): name another folder"
        raise RunError(text, key="state-dir", value=given)
    return folder


class States:
    """The folder of all sites' memories.

    Parameters
    ----------
    config : RunConfig
        Its ``state-memory``.
    given : Path, optional
        The result of `state_dir`.
    scratch : Scratch
        The run's temporary folder.
    in_memory : bool
        Whether that is in shared memory.

    Attributes
    ----------
    folder : Path
        Every site's state folder.
    """

    def __init__(self, config: RunConfig, given: Path | None, scratch: Scratch, *, in_memory: bool) -> None:
        self.config, self._scratch, self._in_memory = config, scratch, in_memory
        self.folder = given or scratch.path / "state"
        self._disk: Scratch | None = None

    def hold(self, size: int) -> int:
        """Choose the folder before the first round: shared memory if there is room, else the temporary folder.

        Parameters
        ----------
        size : int
            Bytes of all memories.

        Returns
        -------
        int
            Bytes in shared memory: all or 0.

        Raises
        ------
        RunError
            If there is no room anywhere.
        """
        if self.config.state_dir:
            return 0
        if self._in_memory and not self._disk:
            most = 1e9 * self.config.state_memory or free_memory() / 2
            if size <= min(most, shutil.disk_usage(self._scratch.path).free - ROOM):
                return size
            self._disk, before = Scratch(), self.folder
            self.folder = self._disk.path / "state"
            if before.exists():  # a resumed run
                shutil.move(before, self.folder)
        free = shutil.disk_usage(self.folder.parent).free
        if size > free:
            raise RunError(
                f"the memories of {self.config.sites} sites take {size / 1e9:,.1f} GB, but the folder for temporary "
                f"files has {free / 1e9:,.1f} GB free: set state-dir to a folder on a larger disk, or lower sites",
                key="state-dir",
                value=size,
                allowed=free,
            )
        return 0

    def prune(self, run: str, server_round: int, names: Iterable[str]) -> None:
        """Remove these sites' memories from before the end of a round, which the run will not go back to.

        Parameters
        ----------
        run : str
            The run's key.
        server_round : int
            The last completed round.
        names : iterable of str
            Names of the participating sites.
        """
        for name in names:
            forget_all_but_last(memory_folder(self.folder, run, name), server_round)

    def store(self, run: str, server_round: int, file: Path) -> list[int] | None:
        """Write all sites' memories after a round into one file; return its size and CRC-32, or None if empty.

        Parameters
        ----------
        run : str
            The run's key.
        server_round : int
            The last that ended.
        file : Path
            A tar archive, replaced atomically.
        """
        folder = run_folder(self.folder, run)
        if not folder.exists():
            return None
        with atomic_writer(file) as out, tarfile.open(fileobj=out, mode="w") as archive:
            for site in sorted(folder.iterdir()):
                if then := [place for place in positions(site) if place[0] <= server_round][-1:]:
                    path = path_of(site, then[0])
                    archive.add(path, path.relative_to(folder))
        return [file.stat().st_size, _crc(file)]

    def restore(self, run: str, file: Path, expected: list[int] | None) -> None:
        """Restore exactly the memories that `store` wrote; ``expected`` is its result.

        Raises
        ------
        RunError
            If the file is missing or damaged.
        """
        folder = run_folder(self.folder, run)
        shutil.rmtree(folder, ignore_errors=True)
        if expected is None and not os.path.lexists(file):
            return
        try:
            size = file.stat().st_size if is_file(file) else None
            if expected is None or expected[:1] != [size] or expected[1:] != [_crc(file)]:
                raise ValueError("it does not hold what was written")
            folder.mkdir(mode=0o700, parents=True)
            with tarfile.open(file, "r:") as archive:
                archive.extractall(folder, filter="data")
        except (OSError, ValueError, tarfile.TarError) as error:
            text = f"resume: {file} cannot be used ({reason(error)}); start the run anew"
            raise RunError(text, key="resume", value=file) from None

    def remove(self) -> None:
        """Remove the folder, if this object created it."""
        if self._disk:
            self._disk.remove()


def _crc(file: Path) -> int:
    """Return the CRC-32 of a file that may be larger than memory."""
    found = 0
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            found = zlib.crc32(block, found)
    return found
