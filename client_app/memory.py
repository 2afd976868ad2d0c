"""What a site keeps on its own disk: its memory between rounds, and at the end its own model.

Both outlive the process, which Flower ends after a message, and the SuperNode. A coordinator that was stopped may go
back to a round that the site has left behind, or ask the same thing twice: so each memory is a file of its own that
says when it was written, and those stay that may be needed again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import stat
import tempfile
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.common import ConfigError, FieldError
from edelweiss.common.files import as_path, reason
from edelweiss.models.storage import StoredTensors, write_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from edelweiss.problems import Arrays

log = logging.getLogger("edelweiss")

SUFFIX = ".safetensors"

Place = tuple[float, float]
"""Where a run stands: a round, and the place of a phase in it."""

Provenance = dict[str, str | int]
"""Where vectors are from: the algorithm, problem and model, and d, the length of x."""


class StateError(FieldError):
    """A file in the state folder belongs to another algorithm, model or run, and stays as it is.

    Attributes
    ----------
    public : str
        The message without the path: it may leave the site.
    """

    def __init__(self, path: Path, theirs: Mapping[str, object], provenance: Provenance) -> None:
        said = f"holds the state of {_described(theirs)}" if theirs else "does not say whose state it holds"
        said += f", and this run is {_described(provenance)}"
        if theirs == provenance:
            said = "is damaged: it does not hold what was written"
        fix = f"{said}. The file is untouched: move it, or set another state-dir"
        self.public = f"{path.parent.name}/{path.name} in the state folder {fix}"
        super().__init__(f"{path} {fix}", key="state-dir", value=dict(theirs), allowed=dict(provenance))


def state_folder(state_dir: str) -> Path:
    """Return the site's own folder; where it names none, a private one that does not outlive the machine.

    Raises
    ------
    ConfigError
        When somebody else has made that one, and could read or change what the site writes there.
    """
    if state_dir:
        return _named(state_dir)
    folder = Path(tempfile.gettempdir()) / f"edelweiss-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(
            "node-config", ["state-dir is missing, and the folder in its place is not this user's alone: set state-dir"]
        )
    return folder


@lru_cache(maxsize=8)
def _named(state_dir: str) -> Path:
    try:
        return as_path(state_dir)
    except OSError as error:
        raise ConfigError("node-config", [f"state-dir cannot be used: {reason(error)}"]) from None


class Memory:
    """One site's vectors in one run: files of named tensors, one for each place in the run that may be gone back to.

    Parameters
    ----------
    state_dir : str
        The site's own folder; empty: a private one under the system's folder for temporary files, which does
        not outlive the machine.
    run : str
        The run's key, or a name; each has its own files.
    site : str
        The site's name: in a simulation many share one folder.
    provenance : Provenance, optional
        What is written into each file, and must be there in one that is read; None reads any.
    """

    def __init__(self, state_dir: str, run: str, site: str, provenance: Provenance | None = None) -> None:
        self._state = state_folder(state_dir)
        self._run, self._site = run.replace("/", "_"), site.replace("/", "_")
        self._of_whom: Provenance = {"run": run, "site": site}
        self.folder = memory_folder(self._state, self._run, self._site)
        self.provenance = provenance

    @cached_property
    def model_path(self) -> Path:
        """Where the site's own model goes, that stays."""
        return self._state / "models" / f"{self._run}-{self._site}.safetensors"

    @cached_property
    def _places(self) -> list[Place]:
        """The places in the run that there are memories of: nobody else writes any while a message is answered."""
        return places(self.folder)

    def opened(self) -> Memory:
        """Return the memory as a message finds it: another process may have written since the last one."""
        self.__dict__.pop("_places", None)
        return self

    def load(self, device: torch.device, before: Place) -> Arrays:
        """Return what was saved last before a place; empty when there is nothing or it cannot be read.

        Raises
        ------
        StateError
            When somebody else's vectors are there.
        """
        place = self.latest(before)
        return self._read(path_of(self.folder, place), device) if place else {}

    def latest(self, before: Place) -> Place | None:
        """Return the place of what was saved last before a place; None if nothing was."""
        return max([place for place in self._places if place < before], default=None)

    def save(self, arrays: Arrays, at: Place, committed: int) -> None:
        """Save what is remembered from a place on; whoever stops this half-way leaves what was there.

        Parameters
        ----------
        arrays : Arrays
            May be empty.
        at : Place
            Whatever was saved for this place or for later ones is void.
        committed : int
            The run will not go back behind the end of this round. If that is this round, nothing else is kept; else
            what was remembered at its end, and before this place.
        """
        saved = self._places
        earlier, stay = [place for place in saved if place < at], set()
        if committed < at[0]:
            stay = {*earlier[-1:], *[place for place in earlier if place <= (committed, math.inf)][-1:]}
        if arrays or stay:  # an empty one says that what was there before is over
            self._write(path_of(self.folder, at), arrays, self.provenance or {})
            stay.add(at)
        for place in saved:
            if place not in stay:
                path_of(self.folder, place).unlink(missing_ok=True)
        self._places = sorted(stay)

    def shortage(self) -> str:
        """Say that the disk has no room for about three memories of two vectors as long as x; empty if it has."""
        needed = 3 * 2 * 4 * int((self.provenance or {}).get("d", 0))
        place = self.folder
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        return f"the state folder has {free:,} bytes free, and needs about {needed:,}" if free < needed else ""

    def kept(self, device: torch.device) -> Arrays:
        """Return what `keep` wrote in this run; empty before that.

        Raises
        ------
        StateError
            When it is somebody else's.
        """
        if not self.model_path.exists():
            return {}
        self._require_of_this_run()
        return self._read(self.model_path, device)

    def _require_of_this_run(self) -> None:
        """Raise StateError where somebody else's model has the name that this one would get."""
        try:
            stored = StoredTensors.read(self.model_path)
        except (OSError, ValueError):
            raise StateError(self.model_path, {}, self._of_model) from None
        says = self._of_whom.keys() & stored.facts.keys()  # a release before wrote neither
        self._require_own(self.model_path, stored, self._of_model if says else self.provenance or {})

    @property
    def _of_model(self) -> Provenance:
        """Where a model is from that stays: its run, too, for two runs and sites may make one name of a file."""
        return {**(self.provenance or {}), **self._of_whom}

    def keep(self, model: Arrays, facts: Mapping[str, object]) -> Path:
        """Write the site's own model, which stays when the run is forgotten; return its path.

        Parameters
        ----------
        model : Arrays
            x, and y and buffers where there are such.
        facts : mapping
            What else it takes to use it, as JSON has it: written beside the provenance, as the file's metadata.

        Raises
        ------
        StateError
            When somebody else's model has this name.
        """
        if self.model_path.exists():
            self._require_of_this_run()
        self._write(self.model_path, model, {**self._of_model, **facts})
        return self.model_path

    def forget(self) -> None:
        """Remove the memory, and the run's folder when it was the last one there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._places = []
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()

    def _read(self, path: Path, device: torch.device) -> Arrays:
        try:
            stored = StoredTensors.read(path)
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read (%s): this site starts without its memory", path, reason(error))
            return {}
        self._require_own(path, stored, self.provenance or {})
        return {name: vector.to(device) for name, vector in stored.tensors.items()}

    def _require_own(self, path: Path, stored: StoredTensors, own: Provenance) -> None:
        theirs = {name: stored.facts[name] for name in own if name in stored.facts}
        if theirs != own or not stored.intact:
            raise StateError(path, theirs, own)

    @staticmethod
    def _write(path: Path, arrays: Arrays, facts: Mapping[str, object]) -> None:
        try:
            write_tensors(path, arrays, facts)
        except FileNotFoundError:  # the first time
            for folder in (path.parent.parent, path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_tensors(path, arrays, facts)


def run_folder(state_dir: Path, run: str) -> Path:
    """Return the folder of all sites' memories of one run."""
    return state_dir / f"run-{run}"


def memory_folder(state_dir: Path, run: str, site: str) -> Path:
    """Return the folder of one site's memories of one run."""
    return run_folder(state_dir, run) / f"{site.replace('/', '_')}.memory"


def forget_all_but_last(folder: Path, server_round: int) -> None:
    """Remove what a site remembered before a round ended, but for the last of it."""
    for place in [place for place in places(folder) if place[0] <= server_round][:-1]:
        path_of(folder, place).unlink(missing_ok=True)


def places(folder: Path) -> list[Place]:
    """Return the places in the run that a site's folder has memories of, the first one first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(
        (int(r), int(p))
        for name in names
        for r, dash, p in [name.removesuffix(SUFFIX).partition("-")]
        if name.endswith(SUFFIX) and r.isdigit() and p.isdigit()
    )


def path_of(folder: Path, place: Place) -> Path:
    """Return the file of the memory of a place: round and phase."""
    return folder / f"{place[0]}-{place[1]}{SUFFIX}"


def _described(provenance: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in provenance.items())
