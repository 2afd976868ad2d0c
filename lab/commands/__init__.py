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


def print_result(command: Callable[[], Iterable[str]]) -> int:
    """Print the lines that a command returns, or a user's mistake; return the exit code."""
    from edelweiss.config import MISTAKES

    try:
        print("\n".join(command()))
    except MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
