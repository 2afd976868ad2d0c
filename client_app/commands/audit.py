"""``audit``: verify the audit log, and show what the site received and sent, run by run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.client_app.commands import state_folder

if TYPE_CHECKING:
    from rich.table import Table

DESCRIPTION = (
    "Verify a site's audit log and print it, a table for each run: what was received and sent, with names, shapes, "
    "norms and sizes. Exit code 1 if a line was changed, removed or inserted."
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    add = parser.add_argument
    add("--state-dir", type=state_folder, required=True, help="the site's state folder")
    add("--run", default="", help="only the run whose number begins like this")
    add(
        "--noted",
        default="",
        metavar="HASH",
        help="hash of a former last line, as printed by this command: check that the line is still there",
    )


def run(options: argparse.Namespace) -> int:
    """Verify and print the log; return 1 for an altered one."""
    from rich.console import Console
    from rich.table import Table

    from edelweiss.client_app.audit import Audit, AuditError
    from edelweiss.common.files import reason

    last, noted, found, tables = "", False, 0, dict[str, Table]()
    try:
        for last, line in Audit(Path(options.state_dir)).lines():
            found, noted = found + 1, noted or last == options.noted
            if line["run"].startswith(options.run):
                _row(tables, line)
    except AuditError as error:
        print(f"error: the audit log was altered: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: the audit log cannot be read: {reason(error)}", file=sys.stderr)
        return 1
    except (LookupError, TypeError, ValueError, AttributeError):
        print(f"error: the audit log was altered: line {found} was not written by a site", file=sys.stderr)
        return 1
    for table in tables.values():
        Console(markup=False, highlight=False).print(table)
    if options.noted and not noted:
        print(f"error: no line has the hash {options.noted}: the log was rewritten", file=sys.stderr)
        return 1
    if not found:
        print(f"no audit log in {options.state_dir}: no message was received")
        return 0
    print(f"{found} lines, unaltered. Keep the hash of the last one elsewhere: {last}")
    return 0


def _row(tables: dict[str, Table], line: dict[str, Any]) -> None:
    from rich.table import Table

    if (table := tables.get(line["run"])) is None:
        table = tables[line["run"]] = Table(title=f"run {line['run']}", title_justify="left")
        for name in ("time", "", "kind", "round", "arrays: shape, norm", "bytes", "numbers"):
            table.add_column(name)
    arrays = line.get("arrays", [])
    named = [f"{a['name']}: {'x'.join(map(str, a['shape']))}, {_shown(a['norm'])}" for a in arrays]
    where = f"{line['round']} {line['phase']}" if line["round"] else ""
    size = f"{sum(array['bytes'] for array in arrays):,}" if arrays else ""
    words = f"refused: {line['refused']}" if "refused" in line else ", ".join(line["numbers"])
    words += f", and {line['more']} more" if "more" in line else ""
    cells = (line["time"], line["way"], line["kind"], where, "\n".join(named), size, words)
    table.add_row(*map(_printable, cells))


def _printable(text: str) -> str:
    """Escape control characters, which a coordinator may have sent."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _shown(norm: float | None) -> str:
    return "not finite" if norm is None else f"{norm:.4g}"
