"""``sweep FILE.toml``: many runs, a choice among them, and a comparison of what was chosen."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from edelweiss.common.cores import cores
from edelweiss.common.numbers import whole
from edelweiss.lab.compare import AGAINST

SUMMARY = "do many runs, and choose among them"
DESCRIPTION = "Do the runs of a grid or a random search, choose on held-out samples, and compare what was chosen."
MOST_JOBS = 1024
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
    from edelweiss.common import shown
    from edelweiss.common.files import as_path, reason, unwritable
    from edelweiss.config import ConfigError
    from edelweiss.lab.compare.comparison import require_metrics
    from edelweiss.lab.sweep.file import read
    from edelweiss.lab.sweep.folder import finish, keep, owned
    from edelweiss.lab.sweep.jobs import Sweep
    from edelweiss.lab.sweep.workers import StoppedError, run

    folder = options.to or Path("runs") / options.file.stem
    try:
        if not 1 <= options.jobs <= MOST_JOBS:
            raise ConfigError("command", [f"--jobs {options.jobs}: must be from 1 to {MOST_JOBS}"])
        if wrong := unwritable(folder):
            raise ConfigError("command", [f"--to {shown(str(folder))}: {wrong}"])
        folder = as_path(folder).resolve()
        study, content = read(options.file)
        sweep = Sweep(study, folder / "runs")
        sweep.check()
        require_metrics(sweep.kinds(), options.metric)
        keep(options.file, content, folder)
        with owned(folder):
            run(sweep, options.jobs, options.data_root, options.engine)
            comparison = finish(sweep, folder, options.metric, options.against or ("rounds",))
        print(comparison.markdown())
        if (folder / "winner.toml").exists():
            print(f"run it with: edelweiss --run-config {folder / 'winner.toml'}")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except StoppedError as error:
        print(f"error: {error}\nFinished runs are kept: the same command goes on from there.", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {folder}: {reason(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; finished runs are kept: the same command goes on from there", file=sys.stderr)
        return 130
    return 0
