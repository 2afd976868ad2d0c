"""A site's files: its memory between rounds, and its own model at the end.

They outlive the process, which Flower ends after a message, and the SuperNode. A restarted coordinator may go back to
an earlier round or repeat a message, so each memory is a separate file with its round, kept as long as it may be
needed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.client_app.state_folder import state_folder
from edelweiss.common import FieldError
from edelweiss.common.files import reason
from edelweiss.models.storage import StoredTensors, write_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from edelweiss.problems import Arrays

log = logging.getLogger("edelweiss")

SUFFIX = ".safetensors"

Position = tuple[float, float]
"""A position in a run: round, and index of the phase."""

Provenance = dict[str, str | int]
"""The origin of vectors: algorithm, problem, model, and d, the length of x."""


class StateError(FieldError):
    """A file in the state folder belongs to another algorithm, model or run, and is left unchanged.

    Attributes
    ----------
    public : str
        The message without the path, which may leave the site.
    """

    def __init__(self, path: Path, theirs: Mapping[str, object], provenance: Provenance) -> None:
        problem = f"holds the state of {_described(theirs)}" if theirs else "does not say what it belongs to"
        problem += f", but this run is {_described(provenance)}"
        if theirs == provenance:
            problem = "is damaged"
        fix = f"{problem}. The file is unchanged: move it, or set another state-dir"
        self.public = f"{path.parent.name}/{path.name} in the state folder {fix}"
        super().__init__(f"{path} {fix}", key="state-dir", value=dict(theirs), allowed=dict(provenance))


class Memory:
    """One site's vectors in one run: a file for each position that the run may go back to.

    Parameters
    ----------
    state_dir : str
        The site's folder; empty: a private temporary one, which is lost with the machine.
    run : str
        The run's key, or a name.
    site : str
        The site's name; in a simulation, many sites share one folder.
    provenance : Provenance, optional
        Written into each file and required when reading; None reads any.
    """

    def __init__(self, state_dir: str, run: str, site: str, provenance: Provenance | None = None) -> None:
        self._state = state_folder(state_dir)
        self._run, self._site = run.replace("/", "_"), site.replace("/", "_")
        self._owner: Provenance = {"run": run, "site": site}
        self.folder = memory_folder(self._state, self._run, self._site)
        self.provenance = provenance

    @cached_property
    def model_path(self) -> Path:
        """The file of the site's own model."""
        return self._state / "models" / f"{self._run}-{self._site}.safetensors"

    @cached_property
    def _positions(self) -> list[Position]:
        """The positions with a memory; no other process writes any while a message is answered."""
        return positions(self.folder)

    def reread(self) -> Memory:
        """Return the memory for a new message, reread because another process may have written since."""
        self.__dict__.pop("_positions", None)
        return self

    def load(self, device: torch.device, before: Position) -> Arrays:
        """Return the last memory before a position; empty if there is none or it cannot be read.

        Raises
        ------
        StateError
            If it has another origin.
        """
        position = self.latest(before)
        return self._read(path_of(self.folder, position), device) if position else {}

    def latest(self, before: Position) -> Position | None:
        """Return the position of the last memory before a position; None without one."""
        return max([position for position in self._positions if position < before], default=None)

    def save(self, arrays: Arrays, at: Position, committed: int) -> None:
        """Save the memory after a position; the write is atomic.

        Parameters
        ----------
        arrays : Arrays
            May be empty.
        at : Position
            Memories of this and later positions are discarded.
        committed : int
            The run will not go back before the end of this round. Earlier memories are deleted, except the one at its
            end and the last one before ``at``.
        """
        saved = self._positions
        earlier, stay = [position for position in saved if position < at], set()
        if committed < at[0]:
            stay = {*earlier[-1:], *[position for position in earlier if position <= (committed, math.inf)][-1:]}
        if arrays or stay:  # an empty memory replaces an earlier one
            self._write(path_of(self.folder, at), arrays, self.provenance or {})
            stay.add(at)
        for position in saved:
            if position not in stay:
                path_of(self.folder, position).unlink(missing_ok=True)
        self._positions = sorted(stay)

    def shortage(self) -> str:
        """Warn if the disk has no room for about three memories of two vectors as long as x; empty if it has."""
        needed = 3 * 2 * 4 * int((self.provenance or {}).get("d", 0))
        folder = self.folder
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        return f"the state folder has {free:,} bytes free but needs about {needed:,}" if free < needed else ""

    def own_model(self, device: torch.device) -> Arrays:
        """Return the model saved by `save_own_model` in this run; empty before that.

        Raises
        ------
        StateError
            If it has another origin.
        """
        if not self.model_path.exists():
            return {}
        self._require_of_this_run()
        return self._read(self.model_path, device)

    def _require_of_this_run(self) -> None:
        """Raise StateError if a model of another origin has this name."""
        try:
            stored = StoredTensors.read(self.model_path)
        except (OSError, ValueError):
            raise StateError(self.model_path, {}, self._of_model) from None
        says = self._owner.keys() & stored.facts.keys()  # earlier releases wrote neither
        self._require_own(self.model_path, stored, self._of_model if says else self.provenance or {})

    @property
    def _of_model(self) -> Provenance:
        """The origin of a saved model; includes the run, since two runs and sites may give the same file name."""
        return {**(self.provenance or {}), **self._owner}

    def save_own_model(self, model: Arrays, facts: Mapping[str, object]) -> Path:
        """Save the site's own model permanently; return its path.

        Parameters
        ----------
        model : Arrays
            x, and y and buffers if there are any.
        facts : mapping
            Metadata for its use, as JSON.

        Raises
        ------
        StateError
            If a model of another origin has this name.
        """
        if self.model_path.exists():
            self._require_of_this_run()
        self._write(self.model_path, model, {**self._of_model, **facts})
        return self.model_path

    def forget(self) -> None:
        """Remove the memory, and the run's folder if it is then empty."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._positions = []
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
    """Remove a site's memories from before the end of a round, except the last."""
    for position in [position for position in positions(folder) if position[0] <= server_round][:-1]:
        path_of(folder, position).unlink(missing_ok=True)


def positions(folder: Path) -> list[Position]:
    """Return the positions with a memory in a site's folder, ascending."""
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


def path_of(folder: Path, position: Position) -> Path:
    """Return the file of the memory at a position."""
    return folder / f"{position[0]}-{position[1]}{SUFFIX}"


def _described(provenance: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in provenance.items())
