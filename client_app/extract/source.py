"""Databases: a query's rows in parts, in a transaction that cannot write.

SQLAlchemy speaks to PostgreSQL, SQLite, Oracle and SQL Server. A password is never part of the address: it comes from
the environment or a file, and no message holds it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edelweiss.common import closest, shorter
from edelweiss.common.files import TEXT, as_path, is_file, read_file, reason

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

    from edelweiss.client_app.extract.fhir import Export
    from edelweiss.config.extract import ExtractTable, Kind

PASSWORD = "EDELWEISS_DATABASE_PASSWORD"
ROWS = 20_000  # of a part: some ten MB as Python's objects
PRIVATE = {"password", "passwd", "pwd", "passfile", "sslpassword", "wallet_password"}  # in an address's query

Part = Sequence[Sequence[Any]]


class ExtractError(ValueError):
    """A database, a query or its table that cannot be used; the message is for the operator."""


@dataclass(frozen=True)
class Database:
    """What is particular about a database."""

    name: str
    driver: str  # SQLAlchemy's
    package: str  # that speaks to it
    extra: str  # of pyproject.toml, that brings the package; empty: none is needed
    version: str  # a query for its version
    begin: tuple[str, ...] = ()  # statements that make a transaction unable to write; {ms}: its timeout


DATABASES = {
    "sqlite": Database(
        "SQLite", "sqlite+pysqlite", "sqlite3", "", "SELECT sqlite_version()", ("PRAGMA query_only = ON",)
    ),
    "postgresql": Database(
        "PostgreSQL",
        "postgresql+psycopg",
        "psycopg",
        "postgresql",
        "SHOW server_version",
        ("SET TRANSACTION READ ONLY", "SET LOCAL statement_timeout = {ms}", "SET LOCAL datestyle = 'ISO'"),
    ),
    "oracle": Database(
        "Oracle",
        "oracle+oracledb",
        "oracledb",
        "oracle",
        "SELECT version_full FROM product_component_version FETCH FIRST 1 ROWS ONLY",
        ("SET TRANSACTION READ ONLY",),
    ),
    # SQL Server knows no transaction that cannot write: the login must be allowed to read only.
    "mssql": Database(
        "SQL Server",
        "mssql+pymssql",
        "pymssql",
        "sqlserver",
        "SELECT CAST(SERVERPROPERTY('ProductVersion') AS VARCHAR(40))",
    ),
}
ALIASES = {"postgres": "postgresql", "sqlserver": "mssql"}


@dataclass(frozen=True)
class Answer:
    """What a query returns, while its transaction is open."""

    columns: tuple[str, ...]
    parts: Iterator[Part]
    notes: tuple[str, ...] = ()  # on what it was made of, for people


@dataclass(frozen=True)
class Source:
    """A database at its address."""

    database: Database
    url: URL
    shown: str  # the address without anything secret
    kind: ClassVar[Kind] = "OMOP"  # whose tables it has, for a study that names concepts

    @classmethod
    def of(cls, address: str) -> Source:
        """Read an address such as ``postgresql://reader@db.example.org/omop``.

        Raises
        ------
        ExtractError
            If it is none, has a password in it, or its database is not known here.
        """
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        known = ", ".join(f"{name}://" for name in DATABASES)
        try:
            url = make_url(address)
        except (ArgumentError, ValueError):
            form = "postgresql://USER@HOST/DATABASE or sqlite:////FOLDER/FILE"
            raise ExtractError(f"source: it is no address of a database: write one such as {form}") from None
        if url.password is not None or PRIVATE & {name.lower() for name in url.query}:
            raise ExtractError(
                "source: it has a password in it, which others could read in the list of processes: remove it, and set "
                f"the environment variable {PASSWORD}, or name a file that holds it with --password-file"
            )
        name = url.get_backend_name()
        name = ALIASES.get(name, name)
        if name not in DATABASES:
            near = closest(name, list(DATABASES))
            hint = f" Did you mean {near}://?" if near else ""
            raise ExtractError(f"source: {name!r} is no database that is read here; those are {known}.{hint}")
        database = DATABASES[name]
        url = url.set(drivername=database.driver)
        if name == "sqlite" and not (url.database and is_file(url.database)):
            raise ExtractError(
                f"source: there is no file {shorter(str(url.database or ''))}: name the database's, as in "
                "sqlite:////data/omop.sqlite (four strokes before a path from the root, three before a relative one)"
            )
        return cls(database, url, str(url))

    def asking(self, asked: ExtractTable) -> Source:
        """Return this for the query of a study, which has many steps: PostgreSQL then joins them by hashes.

        It has no statistics of a step's rows, takes them for one, and would go through all events for each person.
        """
        if self.database.name != "PostgreSQL":
            return self
        begin = (*self.database.begin, "SET LOCAL enable_nestloop = off")
        return replace(self, database=replace(self.database, begin=begin))

    @contextmanager
    def answer(
        self, query: str, timeout: float, password: str = "", scratch: Path | None = None
    ) -> Iterator[tuple[str, Answer]]:
        """Run a query; yield the database's name and version, and what it returns.

        The transaction cannot write, where the database knows such, and is rolled back in any case. It ends with an
        error `timeout` seconds after its begin.
        """
        engine = self._engine(timeout, password)
        try:
            with engine.connect() as connection:
                deadline = time.monotonic() + timeout
                self._limit(connection, timeout, deadline)
                version = f"{self.database.name} {connection.exec_driver_sql(self.database.version).scalar()}"
                streamed = connection.execution_options(stream_results=True, max_row_buffer=ROWS, no_parameters=True)
                result = streamed.exec_driver_sql(query)
                if not result.returns_rows:
                    raise ExtractError("query: it returns no rows; it must be one SELECT")
                parts = until(deadline, timeout, result.partitions(ROWS))
                yield version, Answer(tuple(map(str, result.keys())), parts)
                result.close()
                connection.rollback()
        except ExtractError:
            raise
        except Exception as error:
            raise self._explained(error, timeout, password) from None
        finally:
            engine.dispose()

    def _engine(self, timeout: float, password: str) -> Engine:
        from sqlalchemy import create_engine
        from sqlalchemy.pool import NullPool

        url, arguments = self.url, dict[str, Any]()
        if self.database.name == "SQLite":
            # Opened as read-only, a missing file is not created either.
            path = as_path(str(url.database)).absolute()
            url = url.set(database=path.as_uri(), query={"mode": "ro", "uri": "true"})
        elif password:
            url = url.set(password=password)
        if self.database.name == "SQL Server":
            arguments = {"timeout": max(1, int(timeout)), "login_timeout": 30}
        elif self.database.name == "PostgreSQL":
            arguments = {"connect_timeout": 30}
        try:
            return create_engine(url, connect_args=arguments, poolclass=NullPool)
        except ImportError:
            database = self.database
            raise ExtractError(
                f"source: {database.name} needs the package {database.package}: pip install "
                f"'edelweiss[{database.extra}]'; for the image EXTRAS={database.extra}"
            ) from None

    def _limit(self, connection: Connection, timeout: float, deadline: float) -> None:
        """Let the transaction only read, and end in time."""
        driver: Any = connection.connection.driver_connection
        if self.database.name == "SQLite":
            driver.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
        elif self.database.name == "Oracle":
            driver.call_timeout = int(1000 * timeout)
        for statement in self.database.begin:
            connection.exec_driver_sql(statement.format(ms=int(1000 * timeout)))

    def _explained(self, error: Exception, timeout: float, password: str) -> Exception:
        """Return a database's error in a line, without the query and the password; a mistake of ours as it is."""
        from sqlalchemy.exc import DBAPIError

        inner = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        if not isinstance(error, DBAPIError) and not type(error).__module__.startswith(self.database.package):
            return error
        text = " ".join(str(inner).split()) or type(inner).__name__
        if password:
            text = text.replace(password, "***")
        if re.search("interrupted|statement timeout|call timeout|DPY-4024|timed out", text):
            text = late(timeout)
        return ExtractError(f"{self.database.name}: {text}")


def source_at(address: str) -> Source | Export:
    """Return the database or the export at an address; raises `ExtractError` if there is none."""
    from edelweiss.client_app.extract.fhir import PREFIX, Export

    if address.startswith(PREFIX):
        return Export.of(address)
    if "://" not in address and as_path(address).is_dir():
        raise ExtractError(f"source: it is a folder; for one with a FHIR bulk export write {PREFIX}{shorter(address)}")
    if address.startswith(("http://", "https://")):
        text = "a FHIR server's $export is read from the folder with its downloaded files, as in fhir:/data/export"
        raise ExtractError(f"source: it is a web address; {text}")
    return Source.of(address)


def late(timeout: float) -> str:
    """Return that a query took too long."""
    return f"the query took longer than {timeout:g} seconds: narrow it, or set a longer --timeout"


def until(deadline: float, timeout: float, parts: Iterator[Part]) -> Iterator[Part]:
    """Yield the parts until it is too late."""
    for part in parts:
        yield part
        if time.monotonic() > deadline:
            raise ExtractError(late(timeout))


def read_password(file: str) -> str:
    """Return the password for a database: of the file, if one is named, else of the environment; empty: none.

    Raises
    ------
    ExtractError
        If the file cannot be read, or is empty.
    """
    if not file:
        return os.environ.get(PASSWORD, "")
    try:
        text = read_file(Path(file), TEXT).decode()
    except (OSError, ValueError) as error:
        raise ExtractError(f"password-file: {shorter(file)} cannot be read: {reason(error)}") from None
    if not (password := text.rstrip("\r\n")):
        raise ExtractError(f"password-file: {shorter(file)} is empty: its content is the password")
    return password


def one_statement(query: str) -> str:
    """Return a query without the semicolon at its end.

    Raises
    ------
    ExtractError
        If it begins with something else than SELECT or WITH. That it can only read is for the transaction to see to.
    """
    text = query.strip().removesuffix(";").rstrip()
    bare = re.sub(r"(--[^\n]*(\n|$)|/\*.*?\*/|\s)+", " ", text, flags=re.DOTALL).strip()
    if not re.match(r"(?i)(select|with)\b", bare):
        begins = f"begins with {bare.split()[0]!r}" if bare else "is empty"
        raise ExtractError(f"query: it {begins}; it must be one SELECT, or WITH ... SELECT")
    return text
