"""``sweep FILE.toml``: many runs, a choice among them, and a comparison of what was chosen."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.common.cores import cores
from edelweiss.common.numbers import whole
from edelweiss.lab.compare import AGAINST

if TYPE_CHECKING:
    from collections.abc import Callable

    from edelweiss.lab.compare.comparison import Comparison

SUMMARY = "do many runs, and choose among them"
DESCRIPTION = "Do the runs of a grid or a random search, choose on held-out samples, and compare what was chosen."
ENGINES = ("processes", "ray")


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", type=Path, metavar="FILE.toml", help="what is compared and tuned; see docs/compare.md")
    parser.add_argument("--to", default="", metavar="FOLDER", help="runs and results; default: runs/NAME-OF-THE-FILE")
    parser.add_argument("--jobs", type=whole, default=cores(), help="runs at a time; default: one per core")
    parser.add_argument("--engine", choices=ENGINES, default="processes", help="who does them: processes, or Ray")
    parser.add_argument("--data-root", default="", help="as the key data-root, instead of it")
    parser.add_argument("--metric", action="append", default=[], help="of the comparison, as of compare")
    parser.add_argument("--against", action="append", choices=AGAINST, help="as of compare")


def main(options: argparse.Namespace) -> int:
    """Do a sweep; returns the exit code."""
    from edelweiss.lab.sweep.folder import sweep

    to = options.to or f"runs/{options.file.stem}"
    how = {"metrics": options.metric, "against": options.against or ("rounds",)}
    how |= {"data_root": options.data_root, "engine": options.engine}
    return carried_out(lambda: sweep(options.file, to, options.jobs, **how), to)


def carried_out(command: Callable[[], tuple[Path, Comparison]], to: str) -> int:
    """Carry out a sweep into a folder and print its comparison; returns the exit code."""
    from edelweiss.common.files import reason
    from edelweiss.config import ConfigError
    from edelweiss.lab.sweep.workers import StoppedError

    try:
        folder, comparison = command()
        print(comparison.markdown())
        if (folder / "winner.toml").exists():
            print(f"run it with: edelweiss --run-config {folder / 'winner.toml'}")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except StoppedError as error:
        print(f"error: {error}\nFinished runs are kept: the same command continues from there.", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {to}: {reason(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; finished runs are kept: the same command continues from there", file=sys.stderr)
        return 130
    return 0
