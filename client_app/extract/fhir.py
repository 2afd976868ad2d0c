"""A FHIR bulk export: files of one resource a line, which DuckDB reads as tables named as the resources.

DuckDB runs in this process, without a file of its own. It may read the export's files, and write what does not fit into
its memory into one folder; nothing else, and no extension is downloaded.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edelweiss.client_app.extract.fhir_tables import PERSON, RESOURCES, TYPES, Shape, day, rows_of
from edelweiss.client_app.extract.source import ROWS, Answer, ExtractError, late, until
from edelweiss.common import shorter
from edelweiss.common.files import as_path, opened, reason
from edelweiss.datasets.errors import examples

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from edelweiss.config.extract import ExtractTable, Kind

PREFIX = "fhir:"
MEMORY, THREADS = "512MB", 4  # of DuckDB; what does not fit is written to disk
LONGEST = 2**24  # bytes of a line
OPTIONAL = ("Medication",)  # the codes are often in MedicationRequest itself
EXPORT = "a bulk export has files such as Patient.ndjson or Patient.ndjson.gz, with one resource in each line"
ALWAYS: Mapping[str, Shape] = {"resourceType": str, "id": str, "meta": {"lastUpdated": str}}


@dataclass(frozen=True)
class Export:
    """A folder with a bulk export."""

    shown: str
    files: Mapping[str, tuple[Path, ...]]  # by type of resource
    asked: ExtractTable | None = None  # by a study
    kind: ClassVar[Kind] = "FHIR"

    @classmethod
    def of(cls, address: str) -> Export:
        """Find the files of an export; ``address`` is fhir:FOLDER.

        Raises
        ------
        ExtractError
            If the folder has none, or a file begins with no resource.
        """
        place = re.sub("^//(?=/)", "", address.removeprefix(PREFIX))
        try:
            folder = as_path(place or ".").absolute()
            inside = sorted(folder.iterdir())
        except OSError as error:
            text = f"source: {shorter(place)} is no folder that can be read: {reason(error)}"
            raise ExtractError(f"{text}; name that of the export, as in fhir:/data/export") from None
        files: dict[str, list[Path]] = {}
        for file in inside:
            if file.name.lower().endswith((".ndjson", ".ndjson.gz")) and (kind := _kind_of(file)):
                files.setdefault(kind, []).append(file)
        if not files:
            bundles = any(file.suffix == ".json" for file in inside)
            other = "; what is in .json files, such as a Bundle, is not read: ask your server for $export" * bundles
            raise ExtractError(f"source: {shorter(str(folder))} has no file .ndjson: {EXPORT}{other}")
        return cls(f"{PREFIX}{folder}", {kind: tuple(found) for kind, found in files.items()})

    def asking(self, asked: ExtractTable) -> Export:
        """Return this for the query of a study, whose code systems are looked for before it runs."""
        return replace(self, asked=asked)

    @contextmanager
    def answer(
        self, query: str, timeout: float, password: str = "", scratch: Path | None = None
    ) -> Iterator[tuple[str, Answer]]:
        """Run a query; yield DuckDB's version and what it returns.

        Parameters
        ----------
        scratch
            An existing folder for what does not fit into memory; None: then it ends with an error.
        """
        try:
            import duckdb
        except ImportError:
            text = "pip install 'edelweiss[fhir]'; for the image EXTRAS=fhir"
            raise ExtractError(f"source: FHIR needs the package duckdb: {text}") from None
        kinds, deadline = self._named_in(query), time.monotonic() + timeout
        connection = duckdb.connect(
            ":memory:", config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
        ended = threading.Event()
        watch = threading.Thread(target=_interrupt, args=(connection, timeout, ended), daemon=True)
        watch.start()
        try:
            self._confine(connection, scratch)
            notes = self._tables(connection, kinds)
            statements = connection.extract_statements(query)
            # DuckDB itself says whether it only reads: WITH may begin an INSERT, and COPY could write into the export.
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise ExtractError("query: it must be one SELECT, or WITH ... SELECT")
            result = connection.execute(statements[0])
            columns = tuple(name for name, *_ in result.description or ())
            parts = iter(lambda: result.fetchmany(ROWS), [])
            yield f"DuckDB {duckdb.__version__}", Answer(columns, until(deadline, timeout, parts), notes)
        except duckdb.InterruptException:
            raise ExtractError(late(timeout)) from None
        except duckdb.Error as error:
            raise ExtractError(self._explained(error, kinds)) from None
        finally:
            ended.set()
            watch.join()
            connection.close()

    def _named_in(self, query: str) -> list[str]:
        """Return the types of resources that a query names; raises `ExtractError` if one has no file."""
        named = [kind for kind in RESOURCES if re.search(rf"\b{kind}\b", query, re.IGNORECASE)]
        if absent := [kind for kind in named if kind not in self.files and kind not in OPTIONAL]:
            raise ExtractError(
                f"source: {self.shown} has no file with resources of type {' and '.join(absent)}; it has "
                f"{examples(sorted(self.files), 20)}. Export them, as by _type={','.join(absent)}; if there are none, "
                f"put an empty file {absent[0]}.ndjson there"
            )
        return named

    def _confine(self, connection: DuckDBPyConnection, scratch: Path | None) -> None:
        """Let DuckDB read the export, write into the folder, and use so much memory."""
        files = [_text(str(file)) for found in self.files.values() for file in found]
        folder = _text(str(scratch)) if scratch else ""
        for name, value in (
            ("memory_limit", _text(MEMORY)),
            ("threads", str(min(THREADS, os.cpu_count() or 1))),
            ("TimeZone", "'UTC'"),
            ("integer_division", "true"),  # as in PostgreSQL and SQLite
            ("preserve_insertion_order", "false"),
            ("temp_directory", folder or "''"),
            ("allow_community_extensions", "false"),
            ("allowed_paths", f"[{', '.join(files)}]"),
            ("allowed_directories", f"[{folder}]"),
            ("enable_external_access", "false"),
            ("lock_configuration", "true"),
        ):
            connection.execute(f"SET {name} = {value}")

    def _tables(self, connection: DuckDBPyConnection, kinds: list[str]) -> tuple[str, ...]:
        """Make a table of each type, and return what is in it, for people.

        Raises
        ------
        ExtractError
            If a file has something else in it, or the codes are of other systems than those of the study.
        """
        notes, wrong = [], []
        for kind in kinds:
            if not (files := self.files.get(kind, ())):
                connection.execute(f"CREATE VIEW {kind} AS SELECT {_nothing(kind)} LIMIT 0")
                continue
            listed = ", ".join(_text(re.sub(r"[*?[]", r"[\g<0>]", str(file))) for file in files)
            columns = ", ".join(f"{_text(name)}: {_text(_type(shape))}" for name, shape in _elements(kind).items())
            source = f"read_ndjson([{listed}], columns = {{{columns}}}, maximum_object_size = {LONGEST})"
            connection.execute(f"CREATE VIEW {kind} AS SELECT * FROM {source}")
            counts = _counts(connection, kind, self.asked is not None)
            if counts["others"]:
                found = (f"{file}, {text}" for file in files if (text := fault(file, kind)))
                raise ExtractError(next(found, f"source: not every {kind} has an id"))
            if older := counts["resources"] - counts["ids"]:
                connection.execute(f"CREATE OR REPLACE VIEW {kind} AS {_newest(connection, kind, source)}")
                counts = _counts(connection, kind, self.asked is not None)
            notes.append(_note(kind, len(files), counts, older))
            wrong += self._strangers(kind, counts)
        if wrong:
            raise ExtractError("\n".join(wrong))
        if "OperationOutcome" in self.files:
            notes.append("OperationOutcome: the server reported problems of this export; read them")
        return tuple(notes)

    def _strangers(self, kind: str, counts: Mapping[str, Any]) -> list[str]:
        """Return a line for each concept set of whose code systems the export has none."""
        if self.asked is None or not counts["valid"]:
            return []
        there = {system for some in counts.get("systems") or () for system in some if system}
        found = []
        for key, one in self.asked.sets():
            asked = {str(code).partition("|")[0] for code in one.concepts}
            if TYPES[one.of] == kind and not asked & there:
                theirs = f"theirs are of {examples(sorted(there))}" if there else "they have texts alone"
                found.append(
                    f"source: no {kind} has a code of {examples(sorted(asked))}, as {key} needs; {theirs}. Export "
                    "codes of that system, or tell the coordinator yours"
                )
        return found

    def _explained(self, error: Exception, kinds: list[str]) -> str:
        """Return an error of DuckDB in a line, with the file and its line if one cannot be read."""
        named = re.search('file "(.+?)"', str(error))
        files = [(kind, file) for kind in kinds for file in self.files.get(kind, ())]
        if named or "JSON" in str(error) or "gzip" in str(error).lower():
            for kind, file in sorted(files, key=lambda one: not named or str(one[1]) != named[1]):
                if text := fault(file, kind):
                    return f"{file}, {text}"
        if "Out of Memory" in str(error):
            return f"DuckDB: the query needs more than {MEMORY}: narrow it, by a shorter look-back or fewer features"
        # What follows may be of a patient.
        return f"DuckDB: {' '.join(str(error).split(chr(10))[0].partition(': Expected')[0].split())}"


def _interrupt(connection: DuckDBPyConnection, timeout: float, ended: threading.Event) -> None:
    """Interrupt what runs once it is late, again and again: between two statements nobody would notice."""
    while not ended.wait(timeout):
        connection.interrupt()
        timeout = 0.1


def fault(file: Path, kind: str) -> str:
    """Return the first line that is no resource of a type, and why; empty if there is none."""
    number = 0
    try:
        for number, line in _lines(file):
            if len(line) > LONGEST:
                return f"line {number}: it has more than {LONGEST:,} bytes; a line is one resource"
            resource = json.loads(line.decode(), object_pairs_hook=_object, parse_constant=_constant)
            if not isinstance(resource, dict):
                return f"line {number}: it is no resource; {EXPORT}"
            if (found := resource.get("resourceType")) != kind:
                what = f"of type {shorter(str(found))}" if found else "without resourceType"
                return f"line {number}: a resource {what}, where the file's first is of {kind}: export them anew"
            if not isinstance(resource.get("id"), str):
                return f"line {number}: a resource without id: export them anew"
            if misfit := _misfit(resource, _elements(kind), kind):
                return f"line {number}: {misfit}; is it FHIR R4?"
    except UnicodeDecodeError:
        return f"line {number}: it is not UTF-8: export them anew, or convert the file with iconv"
    except (ValueError, RecursionError):
        return f"line {number}: it is no JSON, or not all of it is there: export the file anew, or copy it whole"
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return f"after line {number}: the file is not gzip, or not all of it is there: copy it anew"
    except OSError as error:
        return f"it cannot be read: {reason(error)}"
    return ""


def _kind_of(file: Path) -> str:
    """Return the type of a file's resources: that of the first, in an empty file by its name; empty: none."""
    by_name = next((kind for kind in RESOURCES if re.search(rf"(?<![a-zA-Z]){kind}(?![a-zA-Z])", file.name)), "")
    try:
        _, line = next(_lines(file), (0, b""))
        found = json.loads(line.decode()) if line else {"resourceType": by_name}
    except (EOFError, zlib.error, OSError, ValueError, RecursionError):
        raise ExtractError(f"{file}, {fault(file, by_name)}") from None
    kind = found.get("resourceType") if isinstance(found, dict) else None
    if isinstance(kind, str):
        return kind
    if by_name:
        raise ExtractError(f"{file}, {fault(file, by_name)}")
    return ""  # a log, say


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers; a longer one is cut."""
    with opened(file) as raw:
        stream = gzip.GzipFile(fileobj=raw) if file.name.lower().endswith(".gz") else raw
        for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), 1):
            if text := (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip():
                yield number, text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _misfit(value: Any, shape: Shape, place: str) -> str:
    """Return where a resource differs from its shape; empty if it does not."""
    if value is None or shape is str:
        return ""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{place} must be an object"
        return next((text for k in shape if (text := _misfit(value.get(k), shape[k], f"{place}.{k}"))), "")
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place} must be a list"
        return next((text for one in value if (text := _misfit(one, shape[0], place))), "")
    if shape is bool:
        return "" if isinstance(value, bool) else f"{place} must be true or false"
    try:
        float(value)
    except (TypeError, ValueError):
        return f"{place} must be a number"
    return ""


def _counts(connection: DuckDBPyConnection, kind: str, asked: bool) -> dict[str, Any]:
    """Count a type's resources, and for a study what it does not read of them."""
    one = RESOURCES[kind]
    wanted = {
        "resources": "count(*)",
        "ids": "count(DISTINCT id)",
        "others": f"count(*) FILTER (resourceType IS DISTINCT FROM '{kind}' OR id IS NULL)",
    }
    if asked:
        wanted |= {"valid": f"count(*) FILTER ({one.valid})"}
        if one.written != "NULL":
            written = f"count(*) FILTER ({one.valid} AND {{}})"
            wanted |= {
                "undated": written.format(f"{day('written')} IS NULL"),
                "partial": written.format(f"{day('written')} IS NOT NULL AND length(written) < 10"),
            }
        if "subject" in one.elements:
            wanted["strange"] = (
                f"count(*) FILTER ({one.valid} AND coalesce({PERSON} NOT IN (SELECT id FROM Patient), true))"
            )
            wanted["systems"] = (
                f"list(DISTINCT list_sort(list_distinct(list_transform({one.codings}, lambda c: c.system)))) FILTER "
                f"({one.valid})"
            )
        if kind == "Observation":
            wanted["bounds"] = f"count(*) FILTER ({one.valid} AND valueQuantity.comparator IS NOT NULL)"
        if kind == "Patient":
            wanted["replaced"] = (
                "count(*) FILTER (list_contains(list_transform(link, lambda l: l.type), 'replaced-by'))"
            )
    source = f"(SELECT *, {one.written} AS written FROM {rows_of(kind)})" if asked else kind
    found = connection.execute(f"SELECT {', '.join(wanted.values())} FROM {source}").fetchone()
    return dict(zip(wanted, found or (), strict=True))


def _note(kind: str, files: int, counts: Mapping[str, Any], older: int) -> str:
    """Return what a table has, and what of it is not read, for people."""
    texts = [
        ("are older versions of another", older),
        ("do not count by their status", counts["resources"] - counts.get("valid", counts["resources"])),
        ("are of no patient here", counts.get("strange", 0)),
        ("have no date" if kind != "Patient" else "have no date of birth", counts.get("undated", 0)),
        ("have a date without month or day", counts.get("partial", 0)),
        ("have a value with a comparator, such as <", counts.get("bounds", 0)),
        ("are replaced by another, as they say", counts.get("replaced", 0)),
    ]
    of_them = ", ".join(f"{number:,} {text}" for text, number in texts if number)
    head = f"{kind}: {files} file{'s' * (files > 1)}, {counts['resources']:,} resources"
    return f"{head}; {of_them}" if of_them else head


def _newest(connection: DuckDBPyConnection, kind: str, source: str) -> str:
    """Return a query for the newest version of each resource."""
    connection.execute(f"CREATE TEMP TABLE repeated_{kind} AS SELECT id FROM {kind} GROUP BY id HAVING count(*) > 1")
    twice = f"(SELECT id FROM repeated_{kind})"
    return (
        f"SELECT * FROM {source} WHERE id NOT IN {twice} UNION ALL SELECT * FROM {source} AS one WHERE id IN {twice} "
        "QUALIFY row_number() OVER (PARTITION BY id ORDER BY try_cast(meta.lastUpdated AS TIMESTAMPTZ) DESC "
        "NULLS LAST, CAST(one AS VARCHAR) DESC) = 1"
    )


def _elements(kind: str) -> dict[str, Shape]:
    return {**ALWAYS, **(RESOURCES[kind].elements if kind in RESOURCES else {})}


def _nothing(kind: str) -> str:
    return ", ".join(f"CAST(NULL AS {_type(shape)}) AS {_name(name)}" for name, shape in _elements(kind).items())


def _type(shape: Shape) -> str:
    """Return DuckDB's type of a shape."""
    if isinstance(shape, dict):
        return f"STRUCT({', '.join(f'{_name(name)} {_type(inner)}' for name, inner in shape.items())})"
    if isinstance(shape, list):
        return f"{_type(shape[0])}[]"
    return {str: "VARCHAR", float: "DOUBLE", bool: "BOOLEAN"}[shape]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return f'"{value}"'
