"""The commands of ``edelweiss``, one file each; ``lab/cli.py`` lists them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable


def takes_run_config(parser: argparse.ArgumentParser) -> None:
    """Add the option by which a run is configured."""
    parser.add_argument(
        "--run-config",
        action="append",
        default=[],
        metavar="'KEY=VALUE ...' | FILE.toml",
        help="change keys; may be repeated, later ones win",
    )


def takes_plug_ins(parser: argparse.ArgumentParser) -> None:
    """Add the option that makes known what a run has from outside: its files make no process import anything."""
    parser.add_argument(
        "--plug-in",
        action="append",
        default=[],
        metavar="KEY=MODULE:NAME",
        help="import what the run has from outside, such as model=mypackage.nets:Net; may be repeated",
    )


def load_plug_ins(given: list[str]) -> None:
    """Import what ``--plug-in`` names.

    Raises
    ------
    ConfigError
        With everything that cannot be imported or has the wrong kind.
    """
    from edelweiss.common import shown
    from edelweiss.config import ConfigError
    from edelweiss.config.plug_ins import KINDS, load_named

    wrong: list[str] = []
    for each in given:
        key, _, name = each.partition("=")
        if key not in KINDS or ":" not in name:
            wrong.append(f"--plug-in {shown(each)}: must be KEY=MODULE:NAME, where KEY is {', '.join(KINDS)}")
            continue
        try:
            load_named({key: name})
        except ConfigError as error:
            wrong += error.problems
    if wrong:
        raise ConfigError("command", wrong)


def print_result(command: Callable[[], Iterable[str]]) -> int:
    """Print the lines that a command returns, or a user's mistake; return the exit code."""
    from edelweiss.config import MISTAKES

    try:
        print("\n".join(command()))
    except MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
