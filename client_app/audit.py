"""The tamper-evident audit log of a site: the runs, their messages, what its rules said of them, its operator's acts.

Each line is a JSON object with the SHA-256 of the previous line. A second file, the seal, holds the number of lines,
the hash of the last, and when the file system last saw the log change, which no copy keeps: so a log that was put back
from a backup is noticed, until an operator has acknowledged that. Where runs are signed the head leaves with each
answer, signed, and comes back in receipts of all sites: then not even who can write both files can rewrite the log
unseen. The log has names, shapes, norms, sizes and hashes, but no values and no paths.
"""

from __future__ import annotations

import calendar
import contextlib
import errno
import fcntl
import getpass
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common import FieldError, record_in, records_in
from edelweiss.common.files import json_in, locked, opened, read_json, write_private

if TYPE_CHECKING:
    from typing import BinaryIO

    from flwr.app import Context, Message, RecordDict
    from torch import Tensor

    from edelweiss.federation.messages import Vectors
    from edelweiss.federation.ticket import Ticket
    from edelweiss.problems import Arrays

FILE, SEAL, RECEIPTS = "audit.jsonl", "audit.seal", "receipts"
RECENT = 60.0  # seconds within which a line was written that its process did not live to seal
TAIL = 4096  # bytes first read from the end to find the last line
LONGEST, MOST = 40, 100  # most characters of a name, and most names logged per message
CLOCK = "%Y-%m-%dT%H:%M:%SZ"
WIDTH = 256  # bytes of the seal, so that one can be written over another
START = "0" * 64  # in place of a hash in the first line


class AuditError(FieldError):
    """The log was altered; ``row`` is the first bad line."""


@dataclass(frozen=True)
class _Seal:
    """What the seal says of the log."""

    lines: int = 0
    last: str = START  # the hash of the last line
    changed: int = 0  # when the file system saw it change, in nanoseconds; 0: written by an earlier release
    copied: bool = False  # whether that differed once, and nobody has acknowledged it


def simulated(context: Context) -> bool:
    """Whether a site is a part of public data, and has nothing of its own."""
    return "partition-id" in context.node_config and context.run_config.get("dataset") != "site"


@dataclass(frozen=True)
class Audit:
    """The log of one site."""

    folder: Path  # the site's own state folder
    run: str = ""  # Flower's id of the run
    run_config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, context: Context) -> Audit | None:
        """Return a site's log; None for a simulated site, or one without a state-dir."""
        if simulated(context) or not (folder := str(context.node_config.get("state-dir", ""))):
            return None
        return cls(Path(folder).expanduser(), str(context.run_id), context.run_config)

    def received(self, message: Message, vectors: Mapping[str, Vectors]) -> None:
        """Log a received message, with its vectors by record name; before the first of a run, its run-config."""
        from flwr.app import ArrayRecord

        from edelweiss.federation.seals import arrays_hash, content_hash

        if (begun := (str(self.folder), self.run)) not in _BEGUN:
            _BEGUN.add(begun)
            self._append({**self._head("run", message), "run-config": {**self.run_config}})
        each = [(name, array, one) for one in vectors.values() for name, array in one.arrays.items()]
        arrays = [
            _array(name, len(array.data), one.encoded.get(name), one.decoded.get(name)) for name, array, one in each
        ]
        hashes = {name: arrays_hash(record) for name, record in records_in(message.content, ArrayRecord).items()}
        known = {id(message.content[name]): found for name, found in hashes.items()}
        hashed: dict[str, object] = {"message": content_hash(message.content, arrays=known).hex()}
        hashed |= {"vectors": {_short(name): found.hex() for name, found in hashes.items()}} if hashes else {}
        self._write("in", message, message.content, arrays, hashed)

    def ruled(self, message: Message, rules: str, decision: str, ticket: int, *, refused: bool = False) -> None:
        """Log that a run begins: the rules that allow it, who decided, and the serial of its ticket (0: none).

        ``refused``: that it does not, by a decision in advance.
        """
        verdict = {"refused": True} if refused else {}
        self._append({**self._head("rule", message), "rules": rules, "decision": decision, "ticket": ticket, **verdict})

    def operator(self, act: str, run: str = "", *, of_copy: bool = False) -> None:
        """Log an act of the site's operator, with who is logged in; ``of_copy``: who says that no line is missing."""
        with contextlib.suppress(KeyError, OSError):
            act = f"{act}, by {getpass.getuser()}"
        line = {"time": _now(), "way": "act", "run": run, "kind": "", "round": 0, "phase": ""}
        self._append({**line, "act": act}, of_copy=of_copy)

    def sent(self, message: Message, content: RecordDict, written: Arrays) -> None:
        """Log a reply before it is sent, with its encoded vectors."""
        self._write("out", message, content, arrays_of(written))

    def broken(self, message: Message, reason: str) -> None:
        """Log an error reply after an unexpected exception, if possible."""
        with contextlib.suppress(OSError, AuditError):
            self._append({**self._head("out", message), "refused": reason})

    def turned_away(self, message: Message, reason: str) -> None:
        """Log a message that is rejected unread, and why."""
        self._append(self._head("in", message))
        self._append({**self._head("out", message), "refused": reason})

    def _write(
        self,
        way: str,
        message: Message,
        content: RecordDict,
        arrays: list[dict[str, Any]],
        more: Mapping[str, object] | None = None,
    ) -> None:
        from flwr.app import ConfigRecord

        line = self._head(way, message) | dict(more or {})
        if refusal := record_in(content, "error", ConfigRecord):
            line["refused"] = str(refusal.get("message"))
        else:
            line |= contents(content, arrays)
        self._append(line)

    def _head(self, way: str, message: Message) -> dict[str, Any]:
        from flwr.app import ConfigRecord

        config = record_in(message.content, "config", ConfigRecord) if message.has_content() else {}
        return {
            "time": _now(),
            "way": way,
            "run": self.run,
            "kind": _short(message.metadata.message_type),
            "round": number if isinstance(number := config.get("round", 0), int) else _short(number),
            "phase": _short(config.get("phase", "")),
        }

    def _append(self, line: Mapping[str, Any], *, of_copy: bool = False) -> None:
        """Append a line and update the seal; without room for both the log stays as it was."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked() as file:
            seal = self._sealed()
            copied = not of_copy and (seal.copied or _is_copied(file, seal))
            count, last = seal.lines, seal.last
            end, half = _end(file)
            size = file.seek(0, os.SEEK_END) - half
            if half:
                file.truncate(size)
            if (_parsed(end) or {}).get("before") == last:  # the process was killed before it updated the seal
                count, last = count + 1, _hash(end)
            text = json.dumps({**line, "before": last}, separators=(",", ":")).encode()
            try:
                if os.write(file.fileno(), text + b"\n") <= len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder / FILE))
                os.fsync(
                    file.fileno()
                )  # before the seal, or after a power failure that would count lines that are lost
                self._seal(_Seal(count + 1, _hash(text), _changed(file), copied))
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), size)
                    self._seal(_Seal(count, last, _changed(file), copied), in_place=True)
                raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Open the log, which nobody else writes or puts aside through the block."""
        while True:
            handle = os.open(self.folder / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), os.stat(self.folder / FILE)):
                        yield file
                        return

    def _seal(self, seal: _Seal, *, in_place: bool = False) -> None:
        """Write the seal; ``in_place``: over the one that is there, as on a full disk there is no room for another."""
        text = json.dumps(asdict(seal)).encode().ljust(WIDTH)
        file = self.folder / (SEAL if in_place else f".{SEAL}")
        handle = os.open(file, os.O_WRONLY | (0 if in_place else os.O_CREAT | os.O_TRUNC), 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(text)
        if not in_place:
            os.replace(file, self.folder / SEAL)

    def head(self) -> tuple[int, str]:
        """Return the number of lines and the hash of the last, as sealed; AuditError if that cannot be read."""
        seal = self._sealed()
        return seal.lines, seal.last

    def _sealed(self) -> _Seal:
        try:
            said = read_json(self.folder / SEAL)
            copied = said.get("copied") is True
            return _Seal(int(said["lines"]), str(said["last"]), int(said.get("changed", 0)), copied)
        except FileNotFoundError:
            return _Seal()
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise AuditError(f"{SEAL} cannot be read, so lines may be missing at the end", key=SEAL) from None

    def copied(self) -> bool:
        """Whether the log was copied, or put back from a copy, and no operator has said that no line is missing.

        A snapshot of a whole disk is no copy to it: it keeps what the file system says.
        """
        try:
            with opened(self.folder / FILE) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                seal = self._sealed()
                return seal.copied or _is_copied(file, seal)
        except (OSError, AuditError):  # as `lines` says
            return False

    # ------------------------------------------------------------------ reading it

    def lines(self, verified: Verified | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the lines with their hashes, each checked against the previous one, the last against the seal.

        A site may go on writing meanwhile: what it had written at the beginning is yielded.

        Parameters
        ----------
        verified : Verified, optional
            How far it was verified before: earlier lines are not read again. It is changed as lines are yielded.

        Raises
        ------
        AuditError
            At the first line that does not follow the previous one, or if lines are missing at the end. An attacker
            who rewrites both files is detected only by a hash noted elsewhere.
        """
        at = Verified() if verified is None else verified
        try:
            with opened(self.folder / FILE) as file:
                fcntl.flock(file, fcntl.LOCK_SH)  # or the seal would be that of an earlier line than the last
                (count, sealed), size = self.head(), os.fstat(file.fileno()).st_size
                fcntl.flock(file, fcntl.LOCK_UN)
                file.seek(at.size)
                while at.size < size and (text := file.readline()):
                    line = _parsed(text)
                    if line is None or line.get("before") != at.last:
                        raise AuditError(
                            f"line {at.lines + 1} does not follow the previous line: one of them was changed, or lines "
                            "were removed or inserted between them",
                            row=at.lines + 1,
                        )
                    at.size, at.lines = at.size + len(text), at.lines + 1
                    at.before, at.last = at.last, _hash(text.rstrip(b"\n"))
                    yield at.last, line
        except FileNotFoundError:
            count, sealed = self.head()
        if at.lines < count:
            problem = f"lines {at.lines + 1} to {count} are missing"
            raise AuditError(problem, row=at.lines + 1)
        if (at.lines, at.last) != (count, sealed) and (at.lines, at.before) != (count + 1, sealed):
            problem = f"line {at.lines} is the last, but the seal is for line {count}"
            raise AuditError(problem, row=at.lines)


@dataclass
class Verified:
    """How far a log was verified."""

    size: int = 0  # bytes
    lines: int = 0
    last: str = START  # the hash of the last line, and of that before
    before: str = START


_BEGUN: set[tuple[str, str]] = set()
"""The logs and runs whose run-config this process has logged."""


def require_whole(folder: Path, *, has_runs: bool = False) -> None:
    """Check a site's whole log.

    Parameters
    ----------
    folder : Path
        The site's state folder.
    has_runs : bool
        Whether the site has records of runs, so that there must be a log.

    Raises
    ------
    AuditError
        If it was altered, or is gone.
    """
    if not sum(1 for _ in Audit(folder).lines()) and has_runs:
        raise AuditError("the log is gone, though there are records of runs", key=FILE)


def acknowledge(folder: Path, problem: str) -> Path:
    """Put a damaged log aside and begin a new one, whose first line says so; return where the old one is.

    If the old one was also copied or put back, so is the new one, until somebody acknowledges that: what changed the
    log may have changed the rest of the folder.
    """
    number = next(n for n in itertools.count(1) if not (folder / f"audit-{n}.jsonl").exists())
    aside = folder / f"audit-{number}.jsonl"
    audit = Audit(folder)
    copied = audit.copied()
    with audit._locked() as file:
        found = file.read()
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder / SEAL, folder / f"audit-{number}.seal")
        audit._seal(_Seal(copied=copied))
        os.replace(folder / FILE, aside)  # last: from then on others write
    audit.operator(f"acknowledged that {problem}; what was there is {aside.name}, SHA-256 {_hash(found)}")
    return aside


def acknowledge_copy(folder: Path, who: str = "") -> None:
    """Log that an operator knows of a log that was put back, and says that the site has answered nothing since."""
    act = "acknowledged that the state folder was copied or put back, and that nothing was answered since the copy"
    Audit(folder).operator(f"{act} ({who})" if who else act, of_copy=True)


def keep_receipts(folder: Path, ticket: Ticket, ticket_hash: bytes, own: str, receipts: Iterable[bytes]) -> None:
    """Store the latest receipts of a run's sites, those that their sites have signed.

    An older one, or another of the same line, takes no later one's place: a question may bring what it likes.

    Parameters
    ----------
    folder : Path
        The site's state folder.
    ticket, ticket_hash
        Of the run.
    own : str
        This site's name in the ticket.
    receipts : iterable of bytes
        As a question brings them.

    Raises
    ------
    RefusedError
        If this site signed more than its log has.
    """
    from edelweiss.client_app.errors import RefusedError
    from edelweiss.federation.seals import Receipt

    signed = dict(filter(None, (Receipt.signed(data, ticket, ticket_hash) for data in receipts)))
    if not signed:
        return
    if own in signed and signed[own].line > (line := Audit(folder).head()[0]):
        raise RefusedError(
            f"its audit log has {line} lines, and it has signed an answer with {signed[own].line}: its state was put "
            "back from a copy. Its operator restores the newest state, or leaves this run",
            "its state is older than what it has answered: its operator has to look into it",
        )
    file = folder / RECEIPTS / f"{ticket.serial}.json"
    with locked(file.with_name("lock")):
        try:
            known = read_json(file)["sites"]
        except (OSError, ValueError, LookupError):
            known = {}
        newer = {n: asdict(one) for n, one in signed.items() if n not in known or one.line > known[n]["line"]}
        if newer:
            write_private(file, json.dumps({"own": own, "sites": {**known, **newer}}).encode())


def contents(content: RecordDict, arrays: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe a message without values: its arrays, see `_array`, and the names of its numbers."""
    from flwr.app import ArrayRecord

    numbers: list[str] = []
    for record in (record for record in content.values() if not isinstance(record, ArrayRecord)):
        for name, value in record.items():
            numbers.append(_short(name) + (f"[{len(value)}]" if isinstance(value, list) else ""))
    more = max(0, len(arrays) - MOST) + max(0, len(numbers) - MOST)
    return {"arrays": arrays[:MOST], "numbers": numbers[:MOST]} | ({"more": more} if more else {})


def arrays_of(written: Arrays) -> list[dict[str, Any]]:
    """Describe vectors, see `_array`; the norm of a rounded vector is that of its decoded value."""
    from edelweiss.federation.encoding import decode

    meant = decode(written)
    return [_array(name, vector.nbytes, vector, meant.get(name)) for name, vector in written.items()]


def _array(name: str, size: int, written: Tensor | None, meant: Tensor | None) -> dict[str, Any]:
    """Return name, shape, norm and bytes of a vector; no shape and norm for an invalid one (``written`` is None)."""
    import numpy as np

    if written is None:
        return {"name": _short(name), "shape": None, "norm": None, "bytes": size}
    norm = float(np.linalg.norm((written if meant is None else meant).numpy()))
    finite = norm if math.isfinite(norm) else None  # JSON has no NaN or infinity
    return {"name": _short(name), "shape": list(written.shape), "norm": finite, "bytes": written.nbytes}


def _short(name: object) -> str:
    """Shorten and escape a name from a message, which may be hostile."""
    text = str(name)
    return "".join(c if c.isprintable() else "?" for c in text[:LONGEST]) + "…" * (len(text) > LONGEST)


def _now() -> str:
    return time.strftime(CLOCK, time.gmtime())


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = json_in(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _is_copied(file: BinaryIO, seal: _Seal) -> bool:
    """Whether the log has changed since it was sealed, by more than what a process wrote and did not live to seal."""
    changed = _changed(file)
    if not seal.changed or changed == seal.changed:
        return False
    text, half = _end(file)
    if half:
        return False
    line = _parsed(text) or {}
    try:
        at = calendar.timegm(time.strptime(str(line.get("time")), CLOCK))
    except ValueError:
        return True
    return line.get("before") != seal.last or abs(changed / 1e9 - at) > RECENT


def _changed(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_ctime_ns


def _end(file: BinaryIO) -> tuple[bytes, int]:
    """Return the last whole line, and how many bytes of half a line follow."""
    size, length = file.seek(0, os.SEEK_END), TAIL
    while True:
        file.seek(max(0, size - length))
        end = file.read()
        if end.count(b"\n", 0, -1) or length >= size:
            break
        length *= 2
    whole, _, half = end.rpartition(b"\n")
    return whole.rpartition(b"\n")[2], len(half)
