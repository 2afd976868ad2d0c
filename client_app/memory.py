"""What a site keeps on its own disk: its memory between rounds, and at the end its own model.

Both outlive the process, which Flower ends after a message, and the SuperNode.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load

from models.storage import draft_of, facts_in, write_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from problems import Arrays

log = logging.getLogger("edelweiss")

Provenance = dict[str, str | int]
"""Where vectors are from: the algorithm, problem and model, and d, the length of x."""


class StateError(ValueError):
    """A file in the state folder belongs to another algorithm or model, and stays as it is.

    Attributes
    ----------
    public : str
        The message without the path: it may leave the site.
    """

    def __init__(self, path: Path, theirs: Mapping[str, object], provenance: Provenance) -> None:
        said = f"holds the state of {_described(theirs)}" if theirs else "does not say whose state it holds"
        fix = f"{said}, and this run is {_described(provenance)}. The file is untouched: move it, or set another "
        fix += "state-dir"
        self.public = f"{path.name} in the state folder {fix}"
        super().__init__(f"{path} {fix}")


def state_folder(state_dir: str) -> Path:
    """Return the site's own folder; where it names none, a private one that does not outlive the machine."""
    return Path(state_dir).expanduser() if state_dir else Path(tempfile.gettempdir()) / f"edelweiss-{os.getuid()}"


class Memory:
    """One site's vectors in one run: files of named tensors, each replaced as a whole.

    Parameters
    ----------
    state_dir : str
        The site's own folder; empty: a private one under the system's folder for temporary files, which does
        not outlive the machine.
    run : int or str
        Flower's number of the run, or a name; each has its own files.
    site : str
        The site's name: in a simulation many share one folder.
    provenance : Provenance, optional
        What is written into each file, and must be there in one that is read; None reads any.
    """

    def __init__(self, state_dir: str, run: int | str, site: str, provenance: Provenance | None = None) -> None:
        folder = state_folder(state_dir)
        name = f"{site.replace('/', '_')}.safetensors"
        self.path = folder / f"run-{run}" / name
        self.model_path = folder / "models" / f"{run}-{name}"
        self.provenance = provenance

    def load(self, device: torch.device) -> Arrays:
        """Return what was saved last; empty when there is nothing or it cannot be read.

        Raises
        ------
        StateError
            When somebody else's vectors are there.
        """
        try:
            data = self.path.read_bytes()
            arrays: Arrays = load(data)
        except FileNotFoundError:
            return {}
        except (OSError, SafetensorError) as error:
            log.warning("%s cannot be read (%s): this site starts without its memory", self.path, error)
            return {}
        self._require_own(self.path, data)
        return {name: vector.to(device) for name, vector in arrays.items()}

    def save(self, arrays: Arrays) -> None:
        """Replace the file; whoever stops this half-way leaves the old one in place."""
        if not arrays:
            self.path.unlink(missing_ok=True)
            return
        self._write(self.path, arrays, self.provenance or {})

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
        with contextlib.suppress(OSError):
            self._require_own(self.model_path, self.model_path.read_bytes())
        self._write(self.model_path, model, {**(self.provenance or {}), **facts})
        return self.model_path

    def forget(self) -> None:
        """Remove the memory, and the run's folder when it was the last one there."""
        self.path.unlink(missing_ok=True)
        draft_of(self.path).unlink(missing_ok=True)  # of a process that was stopped half-way
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()

    def _require_own(self, path: Path, data: bytes) -> None:
        theirs = facts_in(data)
        if self.provenance is not None and {name: theirs.get(name) for name in self.provenance} != self.provenance:
            raise StateError(path, {name: theirs[name] for name in self.provenance if name in theirs}, self.provenance)

    @staticmethod
    def _write(path: Path, arrays: Arrays, facts: Mapping[str, object]) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_tensors(path, arrays, facts)


def _described(provenance: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in provenance.items())
