"""``warnings.jsonl`` and ``acts.jsonl`` in a run folder: what the run warned of; who resumed and who stopped it."""

from __future__ import annotations

import getpass
import json
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from edelweiss.common import printable
from edelweiss.common.files import TEXT, json_in, read_file

if TYPE_CHECKING:
    from pathlib import Path

WARNINGS, ACTS = "warnings.jsonl", "acts.jsonl"
MOST = 1000  # warnings that are kept, the newest
LONGEST, LONGEST_NAME = 1000, 100  # characters of a warning, which may quote a site, and of a name

Act = Literal["resumed", "stopped"]


def login() -> str:
    """Return the name of the account that this process runs under; empty if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def note_act(folder: Path, act: Act, by: str) -> None:
    """Add to ``acts.jsonl`` who did what; empty: nobody knows.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    line = json.dumps({"at": time.time(), "act": act, "by": printable(by, LONGEST_NAME)})
    handle = os.open(folder / ACTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    try:
        os.write(handle, f"{line}\n".encode())  # at once: the run's process and the page may both do so
    finally:
        os.close(handle)


def read_notes(file: Path) -> list[dict[str, Any]]:
    """Return the whole lines of one of these files that have a time, the oldest first; empty without a file."""
    found = []
    with suppress(OSError):
        for line in read_file(file, TEXT).splitlines():
            with suppress(ValueError):
                note = json_in(line)
                if isinstance(note, dict) and isinstance(note.get("at"), int | float):
                    found.append(note)
    return found


class RunWarnings:
    """Keeps what a run warns of in its folder; an unwritable file stops no run."""

    def __init__(self, folder: Path) -> None:
        self._file, self._lines, self._one = folder / WARNINGS, 0, threading.Lock()
        with suppress(OSError):
            self._lines = self._file.read_bytes().count(b"\n")

    def keep(self, text: str) -> None:
        """Keep a warning; of more than `MOST`, the newest."""
        note = {"at": time.time(), "text": printable(text, LONGEST)}
        # Escaped, a letter takes up to 12 bytes, and 2 * MOST lines more than `read_notes` takes.
        line = f"{json.dumps(note, ensure_ascii=False)}\n".encode(errors="replace")
        with self._one, suppress(OSError):
            if self._lines >= 2 * MOST:
                from edelweiss.models.storage import atomic_writer  # which loads torch

                kept = self._file.read_bytes().splitlines(keepends=True)[1 - MOST :]
                with atomic_writer(self._file) as file:
                    file.writelines(kept)
                self._lines = len(kept)
            with self._file.open("ab") as stream:
                stream.write(line)
            self._lines += 1
