"""The runs that the page has started: each a process of its own, which goes on when the page ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edelweiss.common import Value, to_toml

LOGS = ".started"  # in the folder of runs: what each start said
TAIL = 4000  # bytes of that which are shown
MOST = 20  # starts that are remembered


@dataclass
class Start:
    """A run that was started: its name, by whom, and what the command says."""

    name: str
    by: str
    folder: Path
    log: Path
    process: subprocess.Popen[bytes]
    at: float = field(default_factory=time.time)

    @property
    def there(self) -> bool:
        """Whether the run's folder says how it stands: from then on the folder is what counts."""
        try:
            return (self.folder / "status.json").stat().st_mtime >= self.at
        except OSError:
            return False

    @property
    def state(self) -> str:
        """In a word: it starts, has not, or runs where the page cannot see its folder."""
        code = self.process.poll()
        return "starting" if code is None else "ended elsewhere" if code == 0 else "not started"

    @property
    def tone(self) -> str:
        """The class of its badge."""
        return {"not started": "bad", "ended elsewhere": "warn"}.get(self.state, "")

    @property
    def said(self) -> str:
        """The end of what the command has said."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL))
                return stream.read().decode(errors="replace").strip()
        except OSError:
            return ""


class Starts:
    """All that this process has started into a folder of runs, but what is a run by now."""

    def __init__(self, root: Path) -> None:
        self._root, self._lock = root, threading.Lock()
        self._all: list[Start] = []

    def start(self, name: str, by: str, words: Sequence[str], keys: Mapping[str, Value]) -> None:
        """Start the command line in a session of its own.

        Raises
        ------
        OSError
            If that is not possible.
        """
        logs = self._root / LOGS
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, log = tempfile.mkstemp(".log", f"{time.strftime('%Y%m%d-%H%M%S')}-", logs)
        settings = Path(log).with_suffix(".toml")
        settings.write_text(to_toml(keys), encoding="utf-8")
        with os.fdopen(handle, "wb") as stream:
            command = [sys.executable, "-m", "edelweiss.lab.cli", *words, "--run-config", str(settings)]
            at = time.time()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
            )
        with self._lock:
            self._all = [*self._all, Start(name, by, self._root / name, Path(log), process, at)][-MOST:]

    def pending(self) -> list[Start]:
        """Return those of which there is no run yet, the last first."""
        with self._lock:
            for each in self._all:
                each.process.poll()  # else it stays a zombie
            return [each for each in reversed(self._all) if not each.there]

    def starting(self, name: str) -> bool:
        """Whether a run of this name is being started."""
        return any(each.name == name and each.state == "starting" for each in self.pending())
