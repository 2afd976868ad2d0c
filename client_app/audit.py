"""What came to a site and what left it, line by line, in a file that shows whether a line was changed or taken out.

Each line is a JSON object and holds the SHA-256 of the line before it. A second file, the seal, holds how many lines
there are and the hash of the last. Names, shapes, norms and sizes are written; no values, no paths.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common import FieldError, record_in
from edelweiss.common.files import json_in, opened, read_json

if TYPE_CHECKING:
    from typing import BinaryIO

    from flwr.app import Context, Message, RecordDict
    from torch import Tensor

    from edelweiss.federation.messages import Vectors
    from edelweiss.problems import Arrays

FILE, SEAL = "audit.jsonl", "audit.seal"
TAIL = 4096  # bytes that are read from the end for the last line; more where it is longer
LONGEST, MOST = 40, 100  # characters of a name, and names of arrays or numbers, that are written of a message
START = "0" * 64  # what the first line holds in place of a hash


class AuditError(FieldError):
    """The log is not what was written; ``row`` is the first line that is wrong."""


@dataclass(frozen=True)
class Audit:
    """The log of one site.

    Attributes
    ----------
    folder : Path
        The site's own state folder.
    run : str
        Flower's number of the run that lines are written of.
    """

    folder: Path
    run: str = ""

    @classmethod
    def of(cls, context: Context) -> Audit | None:
        """Return the log of a site; None where it plays a part of public data, or has no state-dir of its own."""
        node = context.node_config
        own = node.get("state-dir") and (context.run_config.get("dataset") == "site" or "partition-id" not in node)
        return cls(Path(str(node["state-dir"])).expanduser(), str(context.run_id)) if own else None

    def received(self, message: Message, vectors: Mapping[str, Vectors]) -> None:
        """Write what came, with its vectors by the name of their record."""
        each = [(name, array, one) for one in vectors.values() for name, array in one.arrays.items()]
        arrays = [
            _array(name, len(array.data), one.written.get(name), one.meant.get(name)) for name, array, one in each
        ]
        self._write("in", message, message.content, arrays)

    def sent(self, message: Message, content: RecordDict, written: Arrays) -> None:
        """Write what is about to leave, in answer to a message, with its vectors as they are written."""
        self._write("out", message, content, arrays_of(written))

    def broken(self, message: Message, reason: str) -> None:
        """Write that the answer is an error that nobody foresaw, if that can be written."""
        with contextlib.suppress(OSError, AuditError):
            self._append({**self._head("out", message), "refused": reason})

    def turned_away(self, message: Message, reason: str) -> None:
        """Write what came and is answered without being looked into, and why."""
        self._append(self._head("in", message))
        self._append({**self._head("out", message), "refused": reason})

    def _write(self, way: str, message: Message, content: RecordDict, arrays: list[dict[str, Any]]) -> None:
        from flwr.app import ConfigRecord

        line = self._head(way, message)
        if refusal := record_in(content, "error", ConfigRecord):
            line["refused"] = str(refusal.get("message"))
        else:
            line |= contents(content, arrays)
        self._append(line)

    def _head(self, way: str, message: Message) -> dict[str, Any]:
        from flwr.app import ConfigRecord

        config = record_in(message.content, "config", ConfigRecord) if message.has_content() else {}
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "way": way,
            "run": self.run,
            "kind": _short(message.metadata.message_type),
            "round": number if isinstance(number := config.get("round", 0), int) else _short(number),
            "phase": _short(config.get("phase", "")),
        }

    def _append(self, line: Mapping[str, Any]) -> None:
        """Add a line behind the last, and seal it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.folder / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            count, last = self._sealed()
            if (end := _last_line(file)) and end[
                "before"
            ] == last:  # written by a process that was ended before the seal
                count, last = count + 1, _hash(end["text"])
            text = json.dumps({**line, "before": last}, separators=(",", ":")).encode()
            file.write(text + b"\n")
            file.flush()
            draft = self.folder / f".{SEAL}"
            draft.write_text(json.dumps({"lines": count + 1, "last": _hash(text)}), encoding="ascii")
            os.replace(draft, self.folder / SEAL)

    def _sealed(self) -> tuple[int, str]:
        """Return how many lines there are, and the hash of the last."""
        try:
            seal = read_json(self.folder / SEAL)
            return int(seal["lines"]), str(seal["last"])
        except FileNotFoundError:
            return 0, START
        except (OSError, ValueError, LookupError, TypeError):
            raise AuditError(
                f"{SEAL} cannot be read, so nobody can say whether lines are missing at the end", key=SEAL
            ) from None

    # ------------------------------------------------------------------ reading it

    def lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the lines, each with its hash and checked against the one before it; at the end against the seal.

        Raises
        ------
        AuditError
            At the first line that does not follow the one before it, and where lines are missing at the end. Whoever
            can write the folder can write both files anew; a hash that was noted elsewhere shows that.
        """
        count, sealed = self._sealed()
        number, last, before = 0, START, START
        with contextlib.suppress(FileNotFoundError), opened(self.folder / FILE) as file:
            for number, text in enumerate(file, 1):
                line, before = _parsed(text), last
                if line is None or line.get("before") != last:
                    raise AuditError(
                        f"line {number} does not follow the line before it: one of the two was changed, or lines were "
                        "taken out or put in between",
                        row=number,
                    )
                last = _hash(text.rstrip(b"\n"))
                yield last, line
        if number < count:
            said = f"line {number + 1} is missing, and all that follow it up to line {count}"
            raise AuditError(said, row=number + 1)
        if (number, last) != (count, sealed) and (number, before) != (count + 1, sealed):
            said = f"line {number} is not the last one that was sealed, which was line {count}"
            raise AuditError(said, row=number)


def contents(content: RecordDict, arrays: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a message holds without its values: its arrays, see `_array`, and the names of its numbers."""
    from flwr.app import ArrayRecord

    numbers: list[str] = []
    for record in (record for record in content.values() if not isinstance(record, ArrayRecord)):
        for name, value in record.items():
            numbers.append(_short(name) + (f"[{len(value)}]" if isinstance(value, list) else ""))
    more = max(0, len(arrays) - MOST) + max(0, len(numbers) - MOST)
    return {"arrays": arrays[:MOST], "numbers": numbers[:MOST]} | ({"more": more} if more else {})


def arrays_of(written: Arrays) -> list[dict[str, Any]]:
    """Return what is written down of vectors, see `_array`; the norm of a rounded one is that of what it stands for."""
    from edelweiss.federation.encoding import decode

    meant = decode(written)
    return [_array(name, vector.nbytes, vector, meant.get(name)) for name, vector in written.items()]


def _array(name: str, size: int, written: Tensor | None, meant: Tensor | None) -> dict[str, Any]:
    """Return name, shape, norm and bytes of a vector; without ``written`` it is none, and the message is refused."""
    import numpy as np

    if written is None:
        return {"name": _short(name), "shape": None, "norm": None, "bytes": size}
    norm = float(np.linalg.norm((written if meant is None else meant).numpy()))
    told = norm if math.isfinite(norm) else None  # which JSON has no word for
    return {"name": _short(name), "shape": list(written.shape), "norm": told, "bytes": written.nbytes}


def _short(name: object) -> str:
    """Return what a message calls something; who sends it may not fill the log, nor do anything to a terminal."""
    text = str(name)
    return "".join(c if c.isprintable() else "?" for c in text[:LONGEST]) + "…" * (len(text) > LONGEST)


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = json_in(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _last_line(file: BinaryIO) -> dict[str, Any] | None:
    """Return the last line with its text; what a process left half written is cut off. None where there is none."""
    size, length = file.seek(0, os.SEEK_END), TAIL
    while True:
        file.seek(max(0, size - length))
        end = file.read()
        if end.count(b"\n", 0, -1) or length >= size:
            break
        length *= 2
    whole, _, torn = end.rpartition(b"\n")
    if torn:
        file.truncate(size - len(torn))
    text = whole.rpartition(b"\n")[2]
    line = _parsed(text)
    return line and {"before": line.get("before"), "text": text}
