"""What is new in a site's state folder: it reads the files of `join` and writes none of them."""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.client_app.notify.ways import Notice, Settings
from edelweiss.client_app.page.beside import connection_in

if TYPE_CHECKING:
    from edelweiss.client_app.privacy.ledger import Spent
    from edelweiss.federation.privacy_account import Curve

SILENT = 24 * 3600.0  # seconds without a question after which a run counts as ended
REMEMBERED = 1000  # refused runs; a run without a record is forgotten after that many others
PART = 2**24  # bytes of a log that are read at a time
LONGEST = 300  # characters of a text that is not ours
PLAIN = " .,:;=()'_-+%ε"  # besides letters and digits: neither a link nor markup of a chat


@dataclass
class Seen:
    """What was told before: it is kept, so that a restart repeats nothing."""

    runs: dict[str, list[str]] = field(default_factory=dict)  # events by run, of the records that there are
    refused: list[str] = field(default_factory=list)  # runs, the latest last
    flags: list[str] = field(default_factory=list)  # "budget", "lost": told, and still so
    log: list[int] = field(default_factory=lambda: [0, 0])  # inode of the audit log, and how far it was read


def plain(text: str) -> str:
    """Return a text that a coordinator may have chosen, without what could be a link, markup or a line's end."""
    short = text[:LONGEST] + "…" * (len(text) > LONGEST)
    return "".join(c if c.isalnum() or c in PLAIN or c == "…" else "?" for c in short)


@dataclass
class Lines:
    """The lines of a file that only grows, each once."""

    path: Path
    inode: int = 0
    place: int = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the new whole lines; from the beginning if it is another file."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self.inode or found.st_size < self.place:
                    self.inode, self.place = found.st_ino, 0
                if found.st_size == self.place:
                    return
                file.seek(self.place)
                while part := file.read(PART):
                    whole = part[: part.rfind(b"\n") + 1]
                    if not whole:
                        return
                    for line in whole.splitlines():
                        try:
                            said = json.loads(line)
                        except ValueError:
                            continue
                        if isinstance(said, dict):
                            yield said
                    self.place += len(whole)
                    file.seek(self.place)
        except OSError:
            return


class Watch:
    """Looks for what is new.

    Parameters
    ----------
    settings
        Of the operator; with ``epsilon`` and ``delta`` of the privacy budget (0: none).
    state
        The site's state folder.
    seen
        What was told before, which it changes; None: what is there already is old, except a run that waits.
    """

    def __init__(self, settings: Settings, state: Path, seen: Seen | None) -> None:
        self.settings, self.state, self.seen = settings, state, seen or Seen()
        self._new = seen is None
        self._records: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {}
        self._log = Lines(state / "audit.jsonl", *self.seen.log)
        self._ledger = Lines(state / "policy" / "ledger.jsonl")
        self._refused = OrderedDict.fromkeys(self.seen.refused)
        self._spent: Spent | None = None
        self._lost = 0.0  # since when there is no connection; 0: there is one

    def look(self) -> list[Notice]:
        """Return what is new, of the events that the operator chose."""
        now = time.time()
        found = [*self._runs(now), *self._refusals(now), *self._budget(now), *self._connection(now)]
        if self._new:
            found, self._new = [one for one in found if one.event not in ("begins", "ends", "refused")], False
        return [one for one in found if one.event in self.settings["when"]]

    # ------------------------------------------------------------------ runs

    def _runs(self, now: float) -> Iterator[Notice]:
        found: dict[str, list[str]] = {}
        noted = list(self._noted())
        for run, changed, record in noted:
            told = found[run] = self.seen.runs.get(run, [])
            decided = record.get("decision") != "waiting"
            if not decided and float(record.get("until") or 0) > now and "waits" not in told:
                told.append("waits")
                yield self._notice("waits", run, f"run {run} waits for your decision")
            gone = "ends" in told or record.get("over")  # it was told or resumed, and is no news
            if record.get("advance") and record.get("open") and not gone and "begins" not in told:
                told.append("begins")
                yield self._notice("begins", run, f"run {run} begins, {self._in_advance(record['advance'], noted)}")
            if "ends" in told or record.get("decision") == "refused" or not record.get("open") or record.get("over"):
                continue
            if (record.get("place") or [0])[0]:
                told.append("ends")
                yield self._notice("ends", run, f"run {run} has ended: its final model is evaluated")
            elif now - changed > SILENT:
                told.append("ends")
                text = f"run {run} has asked nothing for {SILENT / 3600:.0f} hours: it may have been stopped"
                yield self._notice("ends", run, text)
        self.seen.runs = found

    def _in_advance(self, number: object, noted: list[tuple[str, float, dict[str, Any]]]) -> str:
        """Say which decision let a run begin, and how many more it lets."""
        begun = sum(record.get("advance") == number for _, _, record in noted)
        try:  # of `policy.advance`, which loads torch
            runs = json.loads((self.state / "policy" / "advance" / f"{int(str(number))}.json").read_bytes())["runs"]
            left = f"{max(0, int(runs) - begun)} of its {int(runs)} runs are left"
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            left = "how many runs are left is unknown: look at edelweiss-site runs"
        return f"approved in advance by decision {plain(str(number))}; {left}"

    def _noted(self) -> Iterator[tuple[str, float, dict[str, Any]]]:
        """Yield each run with a record: its number, when the record has changed, and what it says."""
        folder, stats = self.state / "policy" / "runs", {}
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith((".json", ".decision")) and not entry.name.startswith("."):
                        stats[entry.name] = entry.stat()
        except OSError:
            return
        records = {}
        for name in sorted(stats):
            run, _, kind = name.rpartition(".")
            if kind != "json":
                continue
            decision = stats.get(f"{run}.decision")
            stamp = (stats[name].st_mtime_ns, stats[name].st_ino, decision.st_mtime_ns if decision else 0)
            before = self._records.get(run)
            records[run] = before if before and before[0] == stamp else (stamp, self._record(folder, run))
            yield run, stats[name].st_mtime, records[run][1]
        self._records = records

    @staticmethod
    def _record(folder: Path, run: str) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads((folder / f"{run}.json").read_bytes())
            decision = folder / f"{run}.decision"
            return record | ({"decision": decision.read_text(encoding="ascii")} if decision.exists() else {})
        except (OSError, ValueError, TypeError):
            return {"decision": "unknown"}

    def _refusals(self, now: float) -> Iterator[Notice]:
        for line in self._log.new():
            run = str(line.get("run"))
            if line.get("way") != "out" or "refused" not in line or not run or run in self._refused:
                continue
            if self._records.get(run, ((), {}))[1].get("decision") == "refused":  # its operator did
                continue
            self._refused[run] = None
            while len(self._refused) > REMEMBERED:
                self._refused.popitem(last=False)
            yield self._notice("refused", run, f"run {run} was refused: {plain(str(line['refused']))}")
        self.seen.refused, self.seen.log = list(self._refused), [self._log.inode, self._log.place]

    # ------------------------------------------------------------------ budget and connection

    def _budget(self, now: float) -> Iterator[Notice]:
        budget, delta = float(self.settings["epsilon"]), float(self.settings["delta"])
        if not budget:
            return
        lines = list(self._ledger.new())
        if lines and "cost" not in lines[0]:  # its first line: another ledger than before, or none was read yet
            self._spent = None
        if lines:
            from edelweiss.client_app.privacy.ledger import PARTS, Spent
            from edelweiss.federation.privacy_account import epsilon

            spent = self._spent = self._spent or Spent()
            for line in lines:
                if (cost := self._cost(line.get("cost"))) is not None:
                    spent.add(line, cost)
            most = max(epsilon(spent.on(part), delta) for part in PARTS)
            left = max(0.0, 1 - most / budget)
            text = f"{left:.0%} of the privacy budget is left: ε = {most:.3g} of {budget:g} is spent"
            yield from self._flagged("budget", left < float(self.settings["budget-left"]), text)

    @staticmethod
    def _cost(written: object) -> Curve | None:
        import numpy as np

        from edelweiss.federation.privacy_account import ORDERS

        try:
            curve = np.array(written, dtype=float)
        except (TypeError, ValueError):
            return None
        return curve if curve.shape == ORDERS.shape else None

    def _connection(self, now: float) -> Iterator[Notice]:
        found = connection_in(self.state)
        if not found:
            return
        self._lost = (self._lost or time.monotonic()) if found["problem"] else 0.0
        if self._lost and time.monotonic() - self._lost < float(self.settings["lost-after"]):
            return
        minutes = f"{float(self.settings['lost-after']) / 60:.3g} minutes"
        text = f"there is no connection to the coordinator for {minutes}: {plain(str(found['problem']))}"
        yield from self._flagged("lost", bool(self._lost), text, "the coordinator answers again")

    def _flagged(self, event: str, so: bool, text: str, over: str = "") -> Iterator[Notice]:
        """Yield that something has become so, once, and that it is over."""
        if so == (event in self.seen.flags):
            return
        self.seen.flags = sorted({*self.seen.flags, event} if so else {*self.seen.flags} - {event})
        if so or over:
            yield self._notice(event, "", text if so else over)

    def _notice(self, event: str, run: str, text: str) -> Notice:
        name = self.settings["site"]
        return Notice(event, run, f"{name}: {text}" if name else text, time.time())
