"""``audit``: verify the audit log, and show what the site received, allowed and sent, run by run."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from edelweiss.client_app.commands import state_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.client_app.audit import Verified

DESCRIPTION = (
    "Verify a site's audit log and print it, a table for each run: what was received, allowed and sent, with names, "
    "shapes, norms and sizes. Exit code 1 if a line was changed, removed or inserted."
)
COLUMNS = ("time", "", "kind", "round", "arrays: shape, norm", "bytes", "what else")
PIPE = 2000  # columns of a table that is not read on a terminal, so that nothing is cut


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    add = parser.add_argument
    add("--state-dir", type=state_folder, help="the site's state folder")
    add("--run", default="", help="only the run whose number begins like this")
    add(
        "--noted",
        default="",
        metavar="HASH",
        help="hash of a former last line, as printed by this command: check that the line is still there",
    )
    add("--csv", metavar="FILE", help="write the lines to a CSV file instead")
    add("--html", metavar="FILE", help="write them to an HTML page instead, to be printed, with what each run sends")
    add("--sign", metavar="KEY", help="with --html: sign the page with this private key, the site's")
    add("--verify", metavar="PAGE", help="check a page that a site has signed; needs --by, and no state folder")
    add("--by", metavar="NAME.pub", help="the site's public key, from the coordinator or the site, or its SHA-256")
    add(
        "--receipts",
        action="store_true",
        help="compare the log with the receipts of signed runs, which all sites hold, and show those of the others",
    )
    add(
        "--acknowledge",
        action="store_true",
        help="put a damaged log aside and begin a new one, which says so; or, of a state folder that was put back from "
        "a copy, say that nothing was answered since. Until then the site begins no run",
    )


def run(options: argparse.Namespace) -> int:
    """Verify and print the log, or verify a signed page; return 1 for an altered one."""
    from edelweiss.client_app.audit import Audit, AuditError, acknowledge, acknowledge_copy
    from edelweiss.client_app.doubts import copy_doubt
    from edelweiss.common import ConfigError
    from edelweiss.common.files import reason

    if options.verify:
        return _verify(options)
    if not options.state_dir or (options.sign and not options.html):
        missing = "--state-dir" if not options.state_dir else "--html, the page that --sign signs"
        raise ConfigError("command line", [f"name {missing}"])
    folder = Path(options.state_dir)
    rows: Rows = {}
    hashes: list[str] = []
    try:
        read_into(rows, hashes, folder, options.run)
    except AuditError as error:
        if options.acknowledge:
            aside = acknowledge(folder, str(error))
            print(f"a new log begins; the damaged one is {aside}. Keep it: it is evidence")
            if doubt := copy_doubt(folder):
                print(f"no run begins yet: {doubt}")
            return 0
        print(f"error: the audit log was altered: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: the audit log cannot be read: {reason(error)}", file=sys.stderr)
        return 1
    except (LookupError, TypeError, ValueError, AttributeError):
        print(f"error: the audit log was altered: line {len(hashes)} was not written by a site", file=sys.stderr)
        return 1
    copied = Audit(folder).copied()
    if options.acknowledge and copied:
        acknowledge_copy(folder)
        print("the log says that this folder was put back, and that nothing was answered since the copy")
        return 0
    if options.acknowledge:
        print("there is nothing to acknowledge: the log is unaltered")
        return 0
    try:
        _show(rows, hashes, options)
    except OSError as error:
        print(f"error: {error.filename} cannot be written: {reason(error)}", file=sys.stderr)
        return 1
    if options.noted and options.noted not in hashes:
        print(f"error: no line has the hash {options.noted}: the log was rewritten", file=sys.stderr)
        return 1
    if options.receipts and (wrong := _compared(folder, hashes)):
        print("\n".join(f"error: {text}" for text in wrong), file=sys.stderr)
        return 1
    if not hashes:
        print(f"no audit log in {options.state_dir}: no message was received")
        return 0
    if copied:
        print("this is a copy, or was put back from one: later lines may be missing")
    print(f"{len(hashes)} lines, unaltered. Keep the hash of the last one elsewhere: {hashes[-1]}")
    return 0


Rows = dict[str, list[tuple[str, ...]]]
"""The printable lines of each run, in the columns of `COLUMNS`."""


def read_into(rows: Rows, hashes: list[str], folder: Path, run: str = "", *, verified: Verified | None = None) -> None:
    """Verify a site's log, and add its lines, and the hash of each; ``verified``: those that follow.

    Raises
    ------
    AuditError
        If it was altered, or is gone.
    OSError, LookupError, TypeError, ValueError, AttributeError
        If it cannot be read, or a line was not written by a site.
    """
    from edelweiss.client_app.audit import FILE, Audit, AuditError
    from edelweiss.client_app.policy.records import Records

    for last, line in Audit(folder).lines(verified):
        hashes.append(last)
        if line["run"].startswith(run):
            rows.setdefault(line["run"], []).append(tuple(map(_printable, _row(line))))
    if not (hashes or (verified and verified.lines)) and Records(str(folder)).runs():
        raise AuditError("the log is gone, though there are records of runs", key=FILE)


def write_csv(rows: Rows, file: TextIO) -> None:
    """Write the lines as CSV."""
    writer = csv.writer(file)
    writer.writerow(("run", *COLUMNS))
    writer.writerows((run, *map(_as_text, row)) for run, lines in rows.items() for row in lines)


def _as_text(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula: a coordinator may have chosen how it begins."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


def _show(rows: Rows, hashes: list[str], options: argparse.Namespace) -> None:
    """Print the lines of each run, or write them to the file that the options name."""
    if options.csv:
        with open(options.csv, "w", encoding="utf-8", newline="") as file:
            write_csv(rows, file)
    if options.html:
        from edelweiss.client_app.audit_page import audit_page
        from edelweiss.client_app.connection import read_key
        from edelweiss.client_app.policy.records import Records

        key = read_key(options.sign) if options.sign else None
        head = (len(hashes), hashes[-1] if hashes else "")
        Path(options.html).write_bytes(audit_page(rows, COLUMNS, Records(options.state_dir), head, key=key))
    if options.csv or options.html:
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else PIPE)
    for run, lines in rows.items():
        table = Table(*COLUMNS, title=f"run {run}" if run else "the operator", title_justify="left")
        for row in lines:
            table.add_row(*row)
        console.print(table)


def _verify(options: argparse.Namespace) -> int:
    """Check a signed page; return 1 for one that the key has not signed as it is."""
    import re

    from edelweiss.common import ConfigError
    from edelweiss.common.files import read_file, reason
    from edelweiss.federation.seals import public_key_hash
    from edelweiss.federation.signature import SignatureError, verified

    if not options.by:
        raise ConfigError("command line", ["--verify needs --by: the site's public key, NAME.pub, or its SHA-256"])
    try:
        key = options.by if re.fullmatch("[0-9a-f]{64}", options.by) else public_key_hash(Path(options.by))
    except ValueError as error:
        raise ConfigError("command line", [f"--by: {error}"]) from None
    try:
        verified(read_file(options.verify), key)
    except OSError as error:
        print(f"error: {options.verify} cannot be read: {reason(error)}", file=sys.stderr)
        return 1
    except SignatureError as error:
        print(f"error: {options.verify}: {error}", file=sys.stderr)
        return 1
    print(f"{options.verify} is as the site with this key has signed it")
    return 0


def _compared(folder: Path, hashes: list[str]) -> list[str]:
    """Print the heads that sites have signed; return where this log differs from what its site has signed."""
    from edelweiss.client_app.audit import RECEIPTS
    from edelweiss.common.files import read_json

    wrong, files = [], sorted((folder / RECEIPTS).glob("*.json"), key=lambda file: int(file.stem))
    for file in files:
        kept = read_json(file)
        for name, receipt in sorted(kept["sites"].items()):
            number, head = receipt["line"], receipt["head"]
            print(f"run with ticket {file.stem}: {name} has signed line {number}, hash {head}")
            if name == kept["own"] and hashes[number - 1 : number] != [head]:
                wrong.append(f"line {number} is not the one that this site has signed: the log was cut or rewritten")
    if not files:
        print("no receipts: only signed runs bring them")
    return wrong


def _row(line: dict[str, Any]) -> Iterable[str]:
    """Return the cells of a line."""
    arrays = line.get("arrays", [])
    named = [f"{a['name']}: {'x'.join(map(str, a['shape']))}, {_shown(a['norm'])}" for a in arrays]
    where = f"{line['round']} {line['phase']}" if line["round"] else ""
    size = f"{sum(array['bytes'] for array in arrays):,}" if arrays else ""
    return line["time"], line["way"], line["kind"], where, "\n".join(named), size, _words(line)


def _words(line: dict[str, Any]) -> str:
    match line["way"]:
        case "run":
            return ", ".join(f"{key} = {value!r}" for key, value in line["run-config"].items())
        case "rule":
            ticket = f", ticket {line['ticket']}" if line["ticket"] else ""
            verdict = "refused" if "refused" in line else "allowed"
            return f"{verdict} by {line['decision']}{ticket}: {line['rules']}"
        case "act":
            return str(line["act"])
    if "refused" in line:
        return f"refused: {line['refused']}"
    more = f", and {line['more']} more" if "more" in line else ""
    named = {"message": line["message"], **line.get("vectors", {})} if "message" in line else {}
    hashes = [f"{name} {found[:16]}" for name, found in named.items()]
    return ", ".join(line["numbers"]) + more + (f"; hashes: {', '.join(hashes)}" if hashes else "")


def _printable(text: str) -> str:
    """Escape control characters, which a coordinator may have sent."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _shown(norm: float | None) -> str:
    return "not finite" if norm is None else f"{norm:.4g}"
