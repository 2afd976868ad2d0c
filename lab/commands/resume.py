"""``resume [RUN]``: a run that has ended early goes on, here or at a SuperLink."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.lab.commands import submit

if TYPE_CHECKING:
    from collections.abc import Sequence

SUMMARY = "let a run go on that was stopped, failed or lost"
DESCRIPTION = (
    "Let a run go on that was stopped, failed or lost, from its last checkpoint: without RUN the last one in runs/. "
    "With --superlink it goes on there, where its folder must have the same path."
)


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("run", nargs="?", metavar="RUN", default="", help="its folder, or its name in --runs-dir")
    parser.add_argument("--runs-dir", default="runs", metavar="FOLDER", help="where run folders are; default: runs")
    submit.takes(parser, needs_superlink=False)


def main(options: argparse.Namespace) -> int:
    """Resume a run; returns the exit code."""
    from edelweiss.common import ConfigError

    try:
        if wrong := submit.unsafe(options):
            raise ConfigError("resume", wrong)
        folder = resumable(options.run, Path(options.runs_dir).expanduser())
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"resumes {folder}")
    keys = [*options.run_config, f"resume={toml_string(str(folder))}"]
    if options.superlink:
        options.run_config = keys
        return submit.main(options)
    from edelweiss.lab.cli import run

    return run(keys)


def toml_string(text: str) -> str:
    """Quote a text as TOML does."""
    from edelweiss.common.overrides import toml_value

    return toml_value(text)


def resumable(name: str, root: Path) -> Path:
    """Return the folder of a run that can go on.

    Raises
    ------
    ConfigError
        If there is none, or it still runs or is complete.
    """
    from edelweiss.common import ConfigError, shown
    from edelweiss.server_app.run_folder import ENDED_EARLY, mark_lost

    if name:
        folder = next(
            (place for place in (Path(name).expanduser(), root / name) if (place / "config.toml").exists()), None
        )
        if folder is None:
            raise ConfigError("resume", [f"{shown(name)}: no run folder, nor is there one in {root}"])
        status = mark_lost(folder).get("status")
        if status not in ENDED_EARLY:
            raise ConfigError("resume", [f"{folder}: it is {status or 'without a status'}; there is nothing to resume"])
        return folder.resolve()
    found = newest_first(root)
    for folder in found:
        if mark_lost(folder).get("status") in ENDED_EARLY:
            return folder.resolve()
    raise ConfigError("resume", [f"none of the {len(found)} runs in {root} was stopped, failed or lost: name another"])


def newest_first(root: Path) -> Sequence[Path]:
    """Return the run folders in a folder, the one with the latest change of status first."""
    found = [file for file in root.glob("*/status.json") if file.is_file()]
    return [file.parent for file in sorted(found, key=lambda file: -file.stat().st_mtime)]
