"""What the page has read of a site's files: it reads again what has changed, for a run changes them all the time."""

from __future__ import annotations

import os
import threading
import time
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edelweiss.client_app.audit import FILE, SEAL, AuditError, Verified
from edelweiss.client_app.commands.audit import Rows, read_into
from edelweiss.client_app.policy.records import Records, RunRecord
from edelweiss.common import ConfigError
from edelweiss.common.files import reason

WHOLE = (60.0, 200.0)  # a log that grows is verified anew after so many seconds, and so many times what that takes


@dataclass
class Log:
    """The audit log as last verified: of one that has grown, the new lines; of any other, and at times, all."""

    folder: Path
    rows: Rows = field(default_factory=dict)
    problem: str = ""
    _verified: Verified = field(default_factory=Verified)
    _stamp: tuple[Any, ...] = ()
    _whole: float = 0.0  # when all of it is verified next
    _verifying: bool = False
    _lock: Any = field(default_factory=threading.Lock)

    @property
    def lines(self) -> int:
        """How many there are."""
        return self._verified.lines

    @property
    def last(self) -> str:
        """The hash of the last line; empty for none."""
        return self._verified.last if self._verified.lines else ""

    def fresh(self) -> Log:
        """Verify what has changed."""
        with self._lock:
            if (stamp := self._stamp_now()) == self._stamp and stamp[0]:
                return self
            log, before = stamp[0], self._stamp[0] if self._stamp else None
            known = log and before and log[0] == before[0] and not self.problem
            if known and (log[1] > self._verified.size or log == before):  # the latter: its last line was sealed
                self._take(self.rows, copy(self._verified))
                if time.monotonic() > self._whole and not self._verifying:
                    self._verifying = True
                    threading.Thread(target=self._verify, daemon=True).start()
            else:
                began = time.monotonic()
                self._take({}, Verified())
                self._plan(began)
            read = self._stamp_now()[0]  # it may have grown while it was read
            self._stamp = (read if read and read[1] == self._verified.size else log, stamp[1])
            return self

    def _stamp_now(self) -> tuple[Any, ...]:
        """Return what changes with the log's files."""
        found = (stat_of(self.folder / name) for name in (FILE, SEAL))
        return tuple(each and (each.st_ino, each.st_size, each.st_mtime_ns) for each in found)

    def _take(self, rows: Rows, verified: Verified) -> None:
        """Verify the lines after those that were."""
        new, hashes, self.problem = Rows(), list[str](), ""
        try:
            read_into(new, hashes, self.folder, verified=verified)
        except (AuditError, OSError) as error:
            self.problem = str(error) if isinstance(error, AuditError) else reason(error)
        except (LookupError, TypeError, ValueError, AttributeError):
            self.problem = f"line {verified.lines} was not written by a site"
        # Others may be reading the ones before.
        self.rows = rows | {run: rows.get(run, []) + more for run, more in new.items()}
        self._verified = verified

    def _verify(self) -> None:
        """Verify all of it, while others look at what is known."""
        began, whole = time.monotonic(), Log(self.folder)
        whole._take({}, Verified())
        with self._lock:
            self._verifying = False
            self._plan(began)
            if whole.problem:
                self._stamp = ()  # read again: it is said by the next look

    def _plan(self, began: float) -> None:
        now, (least, times) = time.monotonic(), WHOLE
        self._whole = now + max(least, times * (now - began))


class Runs:
    """The records of runs, each read when it has changed; ``problems`` says which ones are damaged."""

    def __init__(self, records: Records) -> None:
        self._records, self._lock = records, threading.Lock()
        self._known: dict[str, tuple[tuple[int, ...], RunRecord]] = {}
        self.problems: list[str] = []

    def all(self) -> list[RunRecord]:
        """Return all records that can be read, the oldest first."""
        with self._lock:
            stats: dict[str, dict[str, os.stat_result]] = {}
            problems: list[str] = []
            try:
                with os.scandir(self._records.folder / "runs") as entries:
                    for entry in entries:
                        run, _, kind = entry.name.rpartition(".")
                        if run and not run.startswith(".") and kind in ("json", "decision"):
                            stats.setdefault(run, {})[kind] = entry.stat()
            except FileNotFoundError:
                pass
            except OSError as error:
                problems.append(f"policy/runs in it cannot be read: {reason(error)}")
            known = {}
            for run, found in stats.items():
                if "json" not in found:
                    continue
                stamp = tuple(n for kind in sorted(found) for n in (found[kind].st_ino, found[kind].st_mtime_ns))
                before = self._known.get(run)
                if before and before[0] == stamp:
                    known[run] = before
                    continue
                try:
                    if record := self._records.run(run):
                        known[run] = stamp, record
                except ConfigError as error:
                    problems += error.problems
            self._known, self.problems = known, problems
            return sorted((record for _, record in known.values()), key=lambda record: record.began)


def stat_of(path: Path) -> Any:
    """Return a file's status; None where it has none that can be had."""
    try:
        return path.stat()
    except OSError:
        return None
