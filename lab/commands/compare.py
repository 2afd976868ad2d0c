"""``compare RUN RUN ...``: finished runs against each other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edelweiss.lab.compare import AGAINST

if TYPE_CHECKING:
    import argparse

SUMMARY = "compare finished runs"
DESCRIPTION = "Compare finished runs: means over seeds, paired differences with intervals, costs, curves."


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or patterns such as 'runs/codasca-*'")
    metric = "such as auroc, or pooled.auprc; may be repeated: differences are in the first"
    parser.add_argument("--metric", action="append", default=[], help=metric)
    parser.add_argument("--versus", default="", metavar="GROUP", help="the group to compare with; default: the first")
    parser.add_argument("--corrected", action="store_true", help="widen intervals by the number of differences")
    parser.add_argument(
        "--against", action="append", choices=AGAINST, help="what curves are drawn against; may be repeated"
    )
    parser.add_argument("--to", default="", metavar="FOLDER", help="write CSV, Markdown, LaTeX, PNG and PDF there")


def main(options: argparse.Namespace) -> int:
    """Compare runs; returns the exit code."""
    from edelweiss.common import shown
    from edelweiss.common.files import as_path, reason, unwritable
    from edelweiss.config import ConfigError
    from edelweiss.lab.compare.comparison import Comparison
    from edelweiss.lab.compare.folders import read

    try:
        if options.against and not options.to:
            raise ConfigError("command", ["--against is for curves: name a folder for them, --to, or leave it out"])
        if options.to and (wrong := unwritable(options.to)):
            raise ConfigError("command", [f"--to {shown(options.to)}: {wrong}"])
        found, notes = read(options.runs)
        comparison = Comparison.of(found, options.metric, options.versus, notes, corrected=options.corrected)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if options.to:
        try:
            comparison.write(as_path(options.to), options.against or ("rounds",))
        except OSError as error:
            print(f"error: --to {options.to!r}: {reason(error)}", file=sys.stderr)
            return 1
    print(comparison.markdown())
    if options.to:
        print(f"written to {options.to}")
    return 0
