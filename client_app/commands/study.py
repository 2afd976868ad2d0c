"""``study draft``: a study file, drafted from the hospital's table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DESCRIPTION = "Draft a study file from your table: a person deletes, confirms and sends it on."


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("action", choices=["draft"])
    takes(parser)


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the options of a draft."""
    parser.add_argument("file", help="the table, in any format that tables are read in")
    parser.add_argument("--label", default="", metavar="COLUMN", help="the label column")
    parser.add_argument("--patient", default="", metavar="COLUMN", help="the patient column")
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
    from edelweiss.datasets.site.draft import draft

    text = draft(Path(options.file), options.label, options.patient)
    parse_file("draft", toml_in(text.encode()))
    return put(text, options.out)


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
