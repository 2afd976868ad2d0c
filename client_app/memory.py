"""What a site remembers between rounds, on its own disk: it outlives the process, which Flower ends after a message."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load, save

if TYPE_CHECKING:
    import torch

    from problems import Arrays

log = logging.getLogger("edelweiss")


class Memory:
    """One site's vectors in one run: a file of named tensors, replaced as a whole.

    Parameters
    ----------
    state_dir : str
        The site's own folder; empty: a private one under the system's folder for temporary files, which does
        not outlive the machine.
    run_id : int
        Flower's number of the run; each has its own file.
    site : str
        The site's name: in a simulation many share one folder.
    """

    def __init__(self, state_dir: str, run_id: int, site: str) -> None:
        folder = Path(state_dir) if state_dir else Path(tempfile.gettempdir()) / f"edelweiss-{os.getuid()}"
        self.path = folder / f"run-{run_id}" / f"{site.replace('/', '_')}.safetensors"
        self._draft = self.path.with_suffix(".draft")

    def load(self, device: torch.device) -> Arrays:
        """Return what was saved last; empty when there is nothing or it cannot be read."""
        try:
            arrays: Arrays = load(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, SafetensorError) as error:
            log.warning("%s cannot be read (%s): this site starts without its memory", self.path, error)
            return {}
        return {name: vector.to(device) for name, vector in arrays.items()}

    def save(self, arrays: Arrays) -> None:
        """Replace the file; whoever stops this half-way leaves the old one in place."""
        if not arrays:
            self.path.unlink(missing_ok=True)
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._draft.open("wb") as file:
            file.write(save({name: vector.contiguous() for name, vector in arrays.items()}))
            file.flush()
            os.fsync(file.fileno())
        self._draft.replace(self.path)

    def forget(self) -> None:
        """Remove the file, and the run's folder when it was the last one there."""
        self.path.unlink(missing_ok=True)
        self._draft.unlink(missing_ok=True)  # of a process that was stopped half-way
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()
