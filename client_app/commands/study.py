"""``study draft``: a study file, drafted from the hospital's table."""

from __future__ import annotations

import argparse
import codecs
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.client_app.commands.extract import seconds

if TYPE_CHECKING:
    from edelweiss.datasets.site.draft import Table

DESCRIPTION = "Draft a study file from your table: a person deletes, confirms and sends it on."


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("action", choices=["draft"])
    takes(parser)


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the options of a draft."""
    add = parser.add_argument
    add("file", nargs="?", default="", help="the table, in any format that tables are read in")
    add("--label", default="", metavar="COLUMN", help="the label column")
    add("--patient", default="", metavar="COLUMN", help="the patient column")
    add("--sheet", default="", help="sheet of a workbook (default: its only one)")
    add("--header-row", type=int, default=1, metavar="N", help="row of a sheet that names the columns (default: 1)")
    add("--encoding", default="", help="of a text file, such as latin-1 (default: found)")
    add("--delimiter", default="", help="between values of a text file (default: found)")
    add("--decimal", default="", choices=["", ".", ","], metavar="MARK", help="within its numbers (default: found)")
    add("--source", default="", metavar="URL", help="a database instead of a file, as for extract")
    add("--query", default="", metavar="FILE", help="the query that it runs")
    add("--password-file", default="", metavar="FILE", help="holds the database's password (default: none)")
    add("--timeout", type=seconds, default=3600.0, help="seconds that the query may take (default: 3600)")
    takes_out(parser)


def takes_out(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where a study file goes."""
    parser.add_argument(
        "--out", default="", metavar="FILE", help="where to write it, as a new file; else it is printed"
    )


def run(options: argparse.Namespace) -> int:
    """Write the draft."""
    from edelweiss.common.files import toml_in
    from edelweiss.config.study import parse_file
    from edelweiss.datasets import DataError
    from edelweiss.datasets.site.draft import FORM_KEYS, Table, draft_of
    from edelweiss.datasets.site.formats import Form

    checked(options)
    if options.source:
        table = queried(options)
    else:
        form = Form(options.delimiter, options.decimal, options.encoding, options.sheet, options.header_row)
        try:
            table = Table.read(Path(options.file), form)
        except DataError as error:
            if error.key not in FORM_KEYS:
                raise
            raise DataError(f"{error}; for this draft: --{error.key}", error.public, key=error.key) from None
    text = draft_of(table, options.label, options.patient)
    parse_file("draft", toml_in(text.encode()))
    if table.of > len(table.rows):
        print(f"drafted from {len(table.rows):,} of {table.of:,} rows, drawn at random", file=sys.stderr)
    return put(text, options.out)


def checked(options: argparse.Namespace) -> None:
    """Raise ConfigError if options contradict each other."""
    from edelweiss.common import ConfigError

    wrong = []
    if bool(options.file) == bool(options.source):
        wrong.append("name the file of a table, or a database with --source; one of these")
    if bool(options.query) != bool(options.source):
        wrong.append("--source and --query FILE go together: the query returns the table")
    if not options.file.isprintable():
        wrong.append(f"{options.file!r}: a path must have printable characters")
    if options.header_row < 1:
        wrong.append(f"--header-row {options.header_row}: must be a number from 1 on")
    for name, value in (("delimiter", options.delimiter), ("encoding", options.encoding)):
        if value and (text := unusable(name, value)):
            wrong.append(f"--{name} {value!r}: {text}")
    if wrong:
        raise ConfigError("command", wrong)


def unusable(name: str, value: str) -> str:
    """Return why a delimiter or an encoding cannot be used; empty if it can."""
    if name == "delimiter":
        return "" if len(value) == 1 and value not in '"\0\n\r ' else "must be one character, such as ';' or a tab"
    try:
        codecs.lookup(value)
        "a".encode(value)
    except (LookupError, ValueError):
        return "no such encoding; take utf-8, latin-1, cp1252 or utf-16"
    return ""


def queried(options: argparse.Namespace) -> Table:
    """Return the table of a query, whose rows are read in parts."""
    from edelweiss.client_app.extract.source import Source, one_statement, read_password
    from edelweiss.config.extract import read_query
    from edelweiss.datasets.site.draft import Table
    from edelweiss.datasets.site.formats import cell_text

    query = one_statement(read_query(Path(options.query)))
    password = read_password(options.password_file)
    with Source.of(options.source).answer(query, options.timeout, password) as (_, answer):
        rows = ([cell_text(value) for value in row] for part in answer.parts for row in part)
        table = Table.of_rows("data.parquet", answer.columns, rows)
    return replace(table, query=query)


def put(text: str, out: str) -> int:
    """Write a study file to a new file, or print it; return the exit code."""
    from edelweiss.common.files import reason

    if not out:
        print(text, end="")
        return 0
    try:
        with Path(out).open("x", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        print(f"error: --out {out} cannot be written: {reason(error)}; name a new file", file=sys.stderr)
        return 1
    print(f"written: {out}; read it before you send it", file=sys.stderr)
    return 0
