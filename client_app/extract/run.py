"""One extraction: the query runs, a person sees what it returned, and only a yes puts it into the site's folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.client_app.audit import Audit, AuditError, require_whole
from edelweiss.client_app.extract.source import ExtractError
from edelweiss.client_app.extract.table import Table, write
from edelweiss.common import hint
from edelweiss.common.files import read_json, reason
from edelweiss.datasets.errors import examples

if TYPE_CHECKING:
    from edelweiss.client_app.extract.fhir import Export
    from edelweiss.client_app.extract.source import Source
    from edelweiss.datasets.site.study import Study

FILE = "data.parquet"
VERSION = 1  # of the record


@dataclass(frozen=True)
class Extraction:
    """What a query returned, not yet in the site's folder."""

    query: str
    source: str  # its address, without a password
    database: str  # its name and version
    began: str
    seconds: float
    table: Table
    file: Path  # where it will be
    draft: Path
    notes: tuple[str, ...] = ()  # on what was read, for people
    name: str = ""  # of the study, where the site has data for several

    @property
    def query_hash(self) -> str:
        """SHA-256 of the query's text."""
        return hash_of(self.query)

    def record(self) -> dict[str, Any]:
        """Return what is kept beside the table."""
        return {
            "version": VERSION,
            "time": self.began,
            "seconds": round(self.seconds, 1),
            "source": self.source,
            "database": self.database,
            "query-sha256": self.query_hash,
            "query": self.query,
            "rows": self.table.rows,
            "patients": self.table.patients,
            "notes": list(self.notes),
            "columns": [asdict(column) for column in self.table.columns],
            "file": self.file.name,
            "file-sha256": _file_hash(self.draft),
        }

    def lines(self) -> Iterator[str]:
        """Yield a preview: rows, patients, and each column with its type and missing values."""
        yield from self.notes
        table = self.table
        patients = f" of {table.patients:,} patients" if table.patients else ""
        yield f"{self.database}: {table.rows:,} rows{patients}, {len(table.columns)} columns, {self.seconds:.1f} s"
        width = max(len(column.name) for column in table.columns)
        yield f"  {'column':{width}}  {'type':12}  missing"
        for column in table.columns:
            share = f" ({column.missing / table.rows:.1%})" if column.missing else ""
            yield f"  {column.name:{width}}  {column.type:12}  {column.missing:,}{share}"

    def keep(self, state_dir: Path) -> None:
        """Log the extraction, then put the table and its record into the folder.

        Raises
        ------
        ExtractError
            If the log was altered, or the folder cannot be written; the former table is then untouched.
        """
        place, kept = record_place(self.file), self.record()
        names = examples([column.name for column in self.table.columns], 100)
        what = f"{self.file.name} of study {self.name}" if self.name else self.file.name
        words = (
            f"extracted {what} by the query with SHA-256 {self.query_hash}: {self.table.rows} rows, "
            f"{self.table.patients} patients, columns {names}; {self.database}"
        )
        try:
            draft = self.draft.with_name("record.json")
            draft.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            for written in (draft, self.draft):
                written.chmod(0o600)  # the folder may be open to others
                with written.open("rb") as handle:
                    os.fsync(handle.fileno())
            Audit(state_dir).operator(words)
            os.replace(draft, place)
            os.replace(self.draft, self.file)
        except AuditError as error:
            raise ExtractError(f"state-dir: its audit log was altered: {error}") from None
        except OSError as error:
            raise ExtractError(f"{self.file} cannot be written: {reason(error)}") from None


def hash_of(query: str) -> str:
    """Return the SHA-256 of a query."""
    return hashlib.sha256(query.encode()).hexdigest()


def record_place(file: Path) -> Path:
    """Return where the record of a table is."""
    return file.with_name("extract.json")


def approved(file: Path) -> str:
    """Return the hash of the query by which the table was made that is there; empty if none was extracted.

    Raises
    ------
    ExtractError
        If the record beside it cannot be read.
    """
    try:
        return str(read_json(record_place(file))["query-sha256"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, LookupError, TypeError) as error:
        text = f"{record_place(file)} cannot be read ({reason(error)}): run once without --yes, which writes it anew"
        raise ExtractError(text) from None


def place_of(study: Study | None, folder: Path) -> Path:
    """Return the Parquet file that the study's readers will find in a folder.

    Raises
    ------
    ExtractError
        If the study names another kind of file.
    """
    name = study.file if study else FILE
    if fnmatch(FILE, name):
        return folder / FILE
    if name.endswith(".parquet") and not set(name) & set("*?["):
        return folder / name
    raise ExtractError(
        f"file = {name!r} in the study file: a database's table is a Parquet file; write file = {FILE!r}"
    )


@contextmanager
def pending(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the table, for drafts; it is removed in the end."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".extract-", dir=folder))
    except OSError as error:
        raise ExtractError(f"data-dir: {folder} cannot be written: {reason(error)}") from None
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def extract(
    source: Source | Export,
    query: str,
    file: Path,
    drafts: Path,
    state_dir: Path,
    study: Study | None,
    patient: str = "",
    *,
    name: str = "",
    timeout: float,
    password: str = "",
) -> Extraction:
    """Run a query and write what it returns to a draft.

    Raises
    ------
    ExtractError
        If the database, the query or its table cannot be used, or the site's audit log was altered.
    """
    try:
        require_whole(state_dir)
    except AuditError as error:
        mend = "edelweiss-site audit --acknowledge begins a new one"
        raise ExtractError(f"state-dir: its audit log was altered ({error}): {mend}") from None
    began, started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    parts = drafts / "parts"
    try:
        parts.mkdir()
        with source.answer(query, timeout, password, drafts) as (database, answer):
            names = answer.columns
            patient = patient or (study.patient if study else "") or ("patient" if "patient" in names else "")
            wanted = [*(study.names() if study else ()), *([patient] if patient else ())]
            if absent := sorted(set(wanted) - set(names)):
                text = "; ".join(f"{name!r}{hint(name, names).rstrip('?')}" for name in absent)
                what = examples(list(names), 20)
                raise ExtractError(f"query: it returns no column {text}, which the study names; its columns are {what}")
            table = write(names, answer.parts, parts, drafts / FILE, patient)
    except OSError as error:
        raise ExtractError(f"data-dir: {file.parent} cannot be written: {reason(error)}") from None
    seconds = time.monotonic() - started
    return Extraction(query, source.shown, database, began, seconds, table, file, drafts / FILE, answer.notes, name)


def _file_hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
