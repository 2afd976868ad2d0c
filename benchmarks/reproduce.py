"""Run a published experiment with all its methods, and write its page (docs/results/NAME.md), picture and CSV.

    python -m benchmarks.reproduce --list
    python -m benchmarks.reproduce heart --data-root FOLDER

A study (benchmarks/studies/) is a run-config under experiments/, the methods that are compared on it, and a grid of
step sizes for each, or ranges that points are drawn from. First every point is run once at a seed of its own, and a
grid may grow where its best point lies on its edge; the best point by the metric on the sites' held-out samples is then
run with the seeds that are reported. The test set takes no part in the choice.

Each run is a process's work on one core, and its numbers do not depend on ``--jobs``. It has a folder named after its
configuration: a run that is there is read, one that was cut off is run again, so that the command can be stopped and
repeated at any time. A run that diverged is a result too.

``when-auc-pays`` is a study of another kind: eleven arms in 30 cells, with as many step sizes and seeds as ``--draws``
and ``--seeds`` say. It prints its protocol first.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.studies import REPO, STUDIES, when_auc_pays
from benchmarks.sweep import Sweep
from edelweiss.common.cores import cores
from edelweiss.common.files import as_path, reason, unwritable
from edelweiss.lab.sweep.workers import StoppedError, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_JOBS = 1024


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "name", nargs="?", choices=[*STUDIES, when_auc_pays.NAME], metavar="NAME", help="of a study; see --list"
    )
    parser.add_argument("--list", action="store_true", help="list the studies")
    parser.add_argument("--full", action="store_true", help="the paper's own size, for a GPU; NAME-full.* are written")
    parser.add_argument(
        "--data-root",
        default=os.environ.get("EDELWEISS_DATA", ""),
        help="folder with mnist/, cifar10/, heart_disease/, ...; default: the environment variable EDELWEISS_DATA",
    )
    parser.add_argument("--runs-dir", type=Path, default=REPO / "runs" / "reproduce", help="where the runs are kept")
    parser.add_argument("--results-dir", type=Path, default=REPO / "docs" / "results", help="where results are written")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes; default: one per core")
    parser.add_argument("--only-table", action="store_true", help="run nothing: write what the runs that are there say")
    parser.add_argument("--draws", type=int, default=when_auc_pays.DRAWS, help="when-auc-pays: step sizes of each arm")
    parser.add_argument("--seeds", type=int, default=when_auc_pays.SEEDS, help="when-auc-pays: seeds of the comparison")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="'KEY=VALUE ...'",
        help="change keys of all runs, to try something; needs a --results-dir of its own",
    )
    return parser


def hindrances(options: argparse.Namespace) -> Iterator[str]:
    """Yield what is wrong with the folders that the options name."""
    for option in ("runs-dir", "results-dir", "data-root"):
        named = getattr(options, option.replace("-", "_"))
        try:
            folder = as_path(named)
            wrong = unwritable(folder)
            if option == "data-root":
                wrong = "" if folder.is_dir() else "there is no such folder"
        except OSError as error:
            wrong = reason(error)
        if wrong:
            yield f"--{option} {str(named)!r}: {wrong}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study and write what came of it; returns the exit code."""
    parser = command_line()
    options = parser.parse_args(arguments)
    if options.list:
        titles = {name: study.title for name, study in STUDIES.items()} | {when_auc_pays.NAME: when_auc_pays.TITLE}
        width = max(map(len, titles)) + 2
        for name, title in titles.items():
            print(f"{name:{width}}{title}")
        return 0
    if not options.name:
        parser.error("NAME is missing; --list lists the studies")
    if not 1 <= options.jobs <= MOST_JOBS:
        parser.error(f"--jobs must be from 1 to {MOST_JOBS}")
    if options.set and options.results_dir == parser.get_default("results_dir"):
        parser.error("--set changes the study: name another --results-dir, or the published table would be replaced")

    cells = options.name == when_auc_pays.NAME
    if cells and (options.full or options.set):
        parser.error(f"{options.name} has neither --full nor --set: --draws and --seeds make it larger")
    for option, given, least in (("draws", options.draws, 1), ("seeds", options.seeds, 2)):
        if not least <= given <= when_auc_pays.TUNING_SEED:
            parser.error(f"--{option} must be from {least} to {when_auc_pays.TUNING_SEED}")
    if not cells and (options.draws, options.seeds) != (when_auc_pays.DRAWS, when_auc_pays.SEEDS):
        parser.error(f"--draws and --seeds are for {when_auc_pays.NAME}: the study has its own")
    for wrong in hindrances(options):
        parser.error(wrong)

    from benchmarks import cells as of_cells
    from benchmarks.pages import write
    from edelweiss.config import ConfigError, read_overrides

    # Stopped by a service manager, it ends as with Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        folder = as_path(options.runs_dir).resolve() / options.name
        if cells:
            print(when_auc_pays.protocol(options.draws, options.seeds), flush=True)
            if not options.only_table:
                of_cells.run(folder, options.data_root, options.jobs, options.draws, options.seeds)
            print(of_cells.write(folder, as_path(options.results_dir), options.draws, options.seeds))
            return 0
        study = STUDIES[options.name]
        sweep = Sweep(study, folder, read_overrides(options.set), options.full)
        sweep.check()
        if not options.only_table:
            run(sweep, options.jobs, options.data_root)
        print(write(sweep, as_path(options.results_dir)))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except StoppedError as error:
        print(f"error: {error}\nFinished runs are kept: the same command goes on from there.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; finished runs are kept: the same command goes on from there", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
