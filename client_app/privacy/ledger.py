"""The ledger of a site: what its answers have cost its patients, for the life of their data.

A line is on disk before anything is computed for its answer; so a process that is killed may have paid for nothing, and
never answers unpaid. An answer is given only while what was spent, it included, fits into the budget: a filter, see
`federation.privacy_account`. The same question has the same answer (`client_app.privacy.randomness`), which is paid for
once.

Each line has the hash of the one before, beginning with the site's secret: a ledger of another site, or one with a line
changed, is refused. So is one that somebody put back from a copy: the seal, a second file, has the number of lines, the
hash of the last, and when the file system last saw the ledger change, which a copy does not keep. The rule ``witness``
places the seal elsewhere; then it also notices that a whole disk was put back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edelweiss.client_app.errors import RefusedError
from edelweiss.common import ConfigError
from edelweiss.common.files import reason
from edelweiss.federation.privacy_account import ORDERS, epsilon

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from edelweiss.client_app.policy.records import Records
    from edelweiss.client_app.policy.rules import Budget
    from edelweiss.federation.privacy_account import Curve

Part = Literal["training", "held-out"]
"""Which patients an answer is about. While the data stay as they are nobody is in both.

So each part has the whole budget, and what was spent on other data counts by its dearer part: of a patient who was
among them nobody knows in which. Other data are those of another study, or the same with a row, a column or what tells
patients apart changed.
"""

PARTS: tuple[Part, ...] = ("training", "held-out")
FILE, LOCK, SEAL = "ledger.jsonl", "ledger.lock", "ledger.seal"
SEAL_SIZE = 256  # bytes, always: it is overwritten in place, which a full disk allows
RECENT = 60.0  # seconds within which a line was written that its process did not live to seal


class LedgerError(ConfigError):
    """A ledger that cannot be trusted, with which a site answers nothing more.

    Attributes
    ----------
    public : str
        What may leave the site.
    """

    public = "this site cannot tell what its patients have spent, so it answers no more; its log says why"

    def __init__(self, text: str) -> None:
        super().__init__("privacy ledger", [text])


class Spent:
    """What the lines of a ledger have cost patients, by data and by part of them."""

    def __init__(self) -> None:
        self._by_data: dict[str, dict[str, Curve]] = {}  # the latest last

    def add(self, line: Mapping[str, Any], cost: Curve) -> None:
        """Add a line. One without data is of an earlier release, and counts as one of data of its own."""
        data, part = str(line.get("data", line.get("question"))), str(line.get("part"))
        parts = self._by_data.pop(data, {})
        self._by_data[data] = parts | {part: parts.get(part, 0.0) + cost}

    def on(self, part: Part, data: str = "") -> Curve:
        """Return the most that was spent on a patient who is in a part of some data, by default the latest."""
        none, data = np.zeros(len(ORDERS)), data or next(reversed(self._by_data), "")
        others = (np.maximum.reduce([*parts.values()]) for other, parts in self._by_data.items() if other != data)
        return sum(others, self._by_data.get(data, {}).get(part, none))


@dataclass
class _Read:
    """What a ledger says."""

    lines: int
    last: str  # the hash of the last line
    spent: Spent
    questions: set[str]  # that were paid for
    changed: int  # when the file system last saw the file change, in nanoseconds; 0: there are no lines
    size: int  # bytes; the clocks of some file systems stand still for a second
    runs: dict[tuple[str, str], tuple[int, Curve]]  # by part and run: answers, and what they cost
    hashes: list[str]  # of the lines
    before: str = ""  # what the last line says of the one before, and when it was written, in seconds since 1970
    at: float = 0.0

    def enter(self, line: Mapping[str, Any], cost: Curve) -> None:
        """Add an answer that was paid for."""
        answers, before = self.runs.get((line["part"], line["run"]), (0, np.zeros(len(ORDERS))))
        self.runs[line["part"], line["run"]] = answers + 1, before + cost
        self.spent.add(line, cost)
        self.questions.add(line["question"])

    def paid(self, part: Part, runs: Sequence[str]) -> Curve:
        """Return what some runs have cost a part."""
        return sum((self.runs[part, run][1] for run in runs if (part, run) in self.runs), np.zeros(len(ORDERS)))


class Ledger:
    """The ledger of one site.

    Parameters
    ----------
    folder
        Of the site's records; the seal lies outside, so that it is noticed when that is lost.
    secret
        Of the site, which a ledger belongs to.
    budget
        For the life of the data.
    data
        A hash of the site's data, of whose they are and of who is held out; empty, to look only: the latest.
    """

    def __init__(self, folder: Path, secret: bytes, budget: Budget, data: str = "") -> None:
        from edelweiss.client_app.privacy.randomness import derived  # needs torch, and the site's page does without

        self.budget, self._data = budget, data
        self._site = derived(secret, "ledger").hex()
        self.folder, self._file = folder, folder / FILE
        self._seal = seal_of(folder, budget)
        self._name = f"{folder.name}/{FILE}"
        self._known: _Read | None = None
        self._depth, self._thread = 0, threading.RLock()

    def charge(
        self,
        question: Sequence[bytes],
        cost: Curve,
        part: Part = "training",
        *,
        run: str = "",
        resumed: Sequence[str] = (),
        most: Curve | None = None,
    ) -> None:
        """Pay for an answer, on disk, before it is computed; nothing for one that was paid for.

        Parameters
        ----------
        question
            All that the answer depends on, its noise included.
        cost
            Its Rényi divergences.
        part
            The patients that it is about.
        run
            For whom.
        resumed
            The runs that this one goes on from.
        most
            What all of them may cost together; None: as much as the budget has.

        Raises
        ------
        RefusedError
            If it does not fit into the budget or costs more than ``most``, or cannot be written.
        LedgerError
            If the ledger cannot be trusted.
        """
        from edelweiss.client_app.privacy.randomness import derived

        assert self._data, "without data it is there to look only"
        digest = derived(bytes.fromhex(self._site), part, question).hex()
        with self._locked():
            known = self._read()
            if digest in known.questions:
                return
            if most is not None and self._exceeds(known.paid(part, (*resumed, run)) + cost, most):
                raise RefusedError(
                    "the run was resumed, and what it was to cost this site's patients in all is spent on answers to "
                    "other models: start a new run"
                )
            if not self._fits(known.spent.on(part, self._data) + cost):
                raise RefusedError(f"this site's privacy budget is spent: {self.in_words()}")
            if not known.lines:
                self._append(known, {"orders": ORDERS.tolist()})
            line = {"part": part, "data": self._data, "run": run, "question": digest, "cost": cost.tolist()}
            self._append(known, line)
            known.enter(line, cost)

    def spent(self, part: Part, more: Curve | float = 0.0) -> float:
        """Return the ε of what was spent on a part and of more, at the budget's δ."""
        with self._locked():
            return epsilon(self._read().spent.on(part, self._data) + more, self.budget.delta)

    def fits(self, cost: Curve, part: Part = "training") -> bool:
        """Whether more fits into the budget."""
        with self._locked():
            return self._fits(self._read().spent.on(part, self._data) + cost)

    def paid(self, part: Part, runs: Sequence[str]) -> Curve:
        """Return what some runs have cost a part."""
        with self._locked():
            return self._read().paid(part, runs)

    def in_words(self) -> str:
        """Return budget and expense."""
        return _in_words(self.budget, *map(self.spent, PARTS))

    def runs(self) -> Iterator[tuple[str, str, int, float]]:
        """Yield part, run, answers, and the ε that they alone would have cost."""
        with self._locked():
            for (part, run), (answers, curve) in self._read().runs.items():
                yield part, run, answers, epsilon(curve, self.budget.delta)

    def accept(self) -> None:
        """Seal the ledger as it is now, on the operator's word that nothing was answered since.

        Raises
        ------
        LedgerError
            If its lines do not follow each other, or it is another site's; or if it lacks a line that its seal knows,
            which no word brings back: it has fewer, or others after a copy was put back.
        """
        with self._locked():
            found, sealed, last = self._lines(), 0, ""
            with contextlib.suppress(LedgerError):  # a damaged seal counts nothing: it is what is mended here
                sealed, last, _ = self._sealed()
            if lacks := self._lacking(found, sealed, last):
                raise LedgerError(lacks)
            self._write_seal(found)

    def _exceeds(self, curve: Curve, most: Curve) -> bool:
        return epsilon(curve, self.budget.delta) > 1.001 * epsilon(most, self.budget.delta)  # sums in another order

    def _fits(self, curve: Curve) -> bool:
        return epsilon(curve, self.budget.delta) <= self.budget.epsilon

    # ------------------------------------------------------------------ files

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes out; in the same one it may be entered again."""
        with self._thread:
            if self._depth:
                yield
                return
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise RefusedError(f"its privacy ledger cannot be written: {reason(error)}") from None
            with os.fdopen(handle, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._depth = 1
                try:
                    yield
                finally:
                    self._depth = 0

    def _read(self) -> _Read:
        """Return what the ledger says, once all of it is checked; unchanged, it is not read again."""
        if self._known is None or (self._known.changed, self._known.size) != (self._changed(), self._size()):
            found = self._lines()
            if found.lines or self._seal.exists():
                self._require_sealed(found)
            self._known = found
        return self._known

    def _changed(self) -> int:
        try:
            return self._file.stat().st_ctime_ns
        except FileNotFoundError:
            return 0

    def _size(self) -> int:
        try:
            return self._file.stat().st_size
        except FileNotFoundError:
            return 0

    def _lines(self) -> _Read:
        """Return what all lines say, each checked against the one before; half a line is of no answer, and goes."""
        found = _Read(0, self._site, Spent(), set(), 0, 0, {}, [])
        try:
            text = self._file.read_bytes() if self._file.exists() else b""
        except OSError as error:
            raise LedgerError(f"{self._name} in the state folder cannot be read: {reason(error)}") from None
        whole = text[: text.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                said = json.loads(line)
                if said["before"] != found.last:
                    raise ValueError("it does not follow the line before")
                if number == 1:
                    _require_orders(said)
                else:
                    cost = np.array(said["cost"], dtype=float)
                    if cost.shape != ORDERS.shape or not (cost >= 0).all():
                        raise ValueError("its cost is none")
                    found.enter(said, cost)
            except LedgerError:
                raise
            except (ValueError, LookupError, TypeError):
                raise LedgerError(
                    f"line {number} of {self._name} in the state folder was changed, or is another site's: restore "
                    "the folder as it was; without it no more is answered about these patients"
                ) from None
            found.lines, found.last = number, hashlib.sha256(line).hexdigest()
            found.hashes.append(found.last)
            found.before, found.at = said["before"], said["at"]
        found.changed, found.size = self._changed() if found.lines else 0, len(whole)
        if whole != text:
            os.truncate(self._file, len(whole))
            found.changed = self._changed() if found.lines else 0
            if self._sealed()[:2] == (found.lines, found.last):
                self._write_seal(found)
        return found

    def _require_sealed(self, found: _Read) -> None:
        """Check a ledger against its seal."""
        lines, last, changed = self._sealed()
        if (found.lines, found.last, found.changed) == (lines, last, changed):
            return
        killed = found.lines == lines + 1 and found.before == last  # before it was sealed
        if killed and abs(found.changed / 1e9 - found.at) < RECENT:
            self._write_seal(found)
            return
        problem = (
            f"{self._name} in the state folder was copied, or put back from a copy, so answers may be missing in it: "
            "restore the latest. If nothing was answered since, as after a move to another disk, say so: "
            "edelweiss-site budget --accept"
        )
        raise LedgerError(self._lacking(found, lines, last) or problem)

    def _lacking(self, found: _Read, sealed: int, last: str) -> str:
        """Return what a ledger lacks of what its seal counts; empty if it has the line that was sealed last."""
        if not sealed or found.hashes[sealed - 1 : sealed] == [last]:
            return ""
        what = f"fewer lines, {found.lines}" if found.lines < sealed else f"another line {sealed}"
        return (
            f"answers that were given are missing: {self._name} in the state folder has {what}, and {self._seal} "
            f"counts {sealed}: restore the latest ledger"
        )

    def _sealed(self) -> tuple[int, str, int]:
        try:
            said = json.loads(self._seal.read_bytes())
            return int(said["lines"]), str(said["last"]), int(said["changed"])
        except FileNotFoundError:
            return 0, self._site, 0
        except (OSError, ValueError, LookupError, TypeError):
            raise LedgerError(
                f"{self._seal} is damaged: restore it. If nothing was answered since, say so: edelweiss-site budget "
                "--accept"
            ) from None

    def _append(self, known: _Read, line: dict[str, Any]) -> None:
        """Write a line and its seal; what cannot be written is taken back."""
        at = round(time.time(), 3)
        written = json.dumps({"at": at, **line, "before": known.last}, separators=(",", ":")).encode()
        try:
            if not known.lines:
                self._write_seal(known)  # its place on the disk, before there is anything to lose
            handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(handle).st_size
                try:
                    if os.write(handle, written + b"\n") <= len(written):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(handle)
                except OSError:
                    os.ftruncate(handle, size)
                    raise
            finally:
                os.close(handle)
        except OSError as error:
            if known.lines:
                known.changed = self._changed()
                self._write_seal(known)
            raise RefusedError(f"its privacy ledger cannot be written ({reason(error)}): make room") from None
        known.before, known.at = known.last, at
        known.lines, known.last, known.changed = known.lines + 1, hashlib.sha256(written).hexdigest(), self._changed()
        known.size += len(written) + 1
        self._write_seal(known)

    def _write_seal(self, known: _Read) -> None:
        said = json.dumps({"lines": known.lines, "last": known.last, "changed": known.changed}).encode()
        try:
            self._seal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._seal, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, said.ljust(SEAL_SIZE), 0)
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise RefusedError(f"the seal of its privacy ledger cannot be written: {reason(error)}") from None


def _require_orders(said: dict[str, Any]) -> None:
    """Check the first line: what everything after it means."""
    if said["orders"] != ORDERS.tolist():
        raise LedgerError("the ledger was written by another release, whose account has other orders: install that")


def seal_of(folder: Path, budget: Budget) -> Path:
    """Return where the seal of the ledger in a folder of records lies."""
    return Path(budget.witness or folder.parent) / f"{folder.name}-{SEAL}"


def _in_words(budget: Budget, training: float, held_out: float) -> str:
    spent = f"ε = {training:.3g} of {budget.epsilon:g} is spent on patients trained on"
    return f"{spent}, {held_out:.3g} on those held out, at δ = {budget.delta:g}"


def spent_in_words(records: Records, budget: Budget) -> str:
    """Return what a site has spent of its budget, without writing anything where it never answered.

    Raises
    ------
    LedgerError
        If the ledger cannot be trusted.
    """
    if not records.has_secret:
        if (seal := seal_of(records.folder, budget)).exists():
            raise LedgerError(
                f"the state folder has neither a ledger nor the site's secret, and {seal} is of answers that were "
                "given: restore the folder; without it no more is answered about these patients"
            )
        return _in_words(budget, 0.0, 0.0)
    return Ledger(records.folder, records.secret, budget).in_words()
