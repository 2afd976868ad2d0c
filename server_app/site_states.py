"""What the sites of the local engine remember: files, in memory or on a disk."""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.client_app.memory import forget_all_but_last, memory_folder, path_of, places, run_folder
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
    """Return the folder that ``state-dir`` names; None where it names none.

    Raises
    ------
    RunError
        When it cannot be used.
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
    """Where the sites write, and what is done to all of it at once.

    Parameters
    ----------
    config : RunConfig
        Its ``state-memory``.
    given : Path, optional
        What `state_dir` returned.
    scratch : Scratch
        The run's own folder.
    in_memory : bool
        Whether that is one of shared memory.

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
        """Choose where the sites write, before the first round: in memory if there is room for it.

        Else it lies in files of the temporary folder; the system keeps those in memory that are in use.

        Parameters
        ----------
        size : int
            Bytes of all that they will remember.

        Returns
        -------
        int
            How many of them are in memory: all or 0.

        Raises
        ------
        RunError
            When there is no room for them anywhere.
        """
        if self.config.state_dir:
            return 0
        if self._in_memory and not self._disk:
            most = 1e9 * self.config.state_memory or free_memory() / 2
            if size <= min(most, shutil.disk_usage(self._scratch.path).free - ROOM):
                return size
            self._disk, before = Scratch(), self.folder
            self.folder = self._disk.path / "state"
            if before.exists():  # a run that goes on
                shutil.move(before, self.folder)
        free = shutil.disk_usage(self.folder.parent).free
        if size > free:
            raise RunError(
                f"what {self.config.sites} sites remember takes {size / 1e9:,.1f} GB, and the folder for temporary "
                f"files has {free / 1e9:,.1f} GB free: name a state-dir on a larger disk, or lower sites",
                key="state-dir",
                value=size,
                allowed=free,
            )
        return 0

    def prune(self, run: str, server_round: int, names: Iterable[str]) -> None:
        """Remove what these sites remembered before a round: the run will not go back behind its end.

        Parameters
        ----------
        run : str
            The run's key.
        server_round : int
            The last that ended.
        names : iterable of str
            Of the sites that took part.
        """
        for name in names:
            forget_all_but_last(memory_folder(self.folder, run, name), server_round)

    def store(self, run: str, server_round: int, file: Path) -> list[int] | None:
        """Write what all sites remembered after a round into one file, and return its size and CRC-32.

        If that is nothing, there is no file, and None.

        Parameters
        ----------
        run : str
            The run's key.
        server_round : int
            The last that ended.
        file : Path
            A tar archive, replaced as a whole.
        """
        folder = run_folder(self.folder, run)
        if not folder.exists():
            return None
        with atomic_writer(file) as out, tarfile.open(fileobj=out, mode="w") as archive:
            for site in sorted(folder.iterdir()):
                if then := [place for place in places(site) if place[0] <= server_round][-1:]:
                    path = path_of(site, then[0])
                    archive.add(path, path.relative_to(folder))
        return [file.stat().st_size, _crc(file)]

    def restore(self, run: str, file: Path, expected: list[int] | None) -> None:
        """Give the sites back what `store` wrote, and nothing else; ``expected`` is what it returned.

        Raises
        ------
        RunError
            When the file is not there as it was written.
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
        """Remove the folder that this object has made."""
        if self._disk:
            self._disk.remove()


def _crc(file: Path) -> int:
    """Return the CRC-32 of a file that may be larger than memory."""
    found = 0
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            found = zlib.crc32(block, found)
    return found
