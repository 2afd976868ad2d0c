"""``recommend``: which recipe suits the data of a run-config."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edelweiss.common.cores import cores
from edelweiss.common.numbers import whole
from edelweiss.lab.commands import takes_run_config

if TYPE_CHECKING:
    import argparse

SUMMARY = "find out which recipe suits your data"
DESCRIPTION = (
    "Compare cross-entropy, class-weighted cross-entropy, training for AUROC and a model for each site on the data of "
    "a run-config, with equally many step sizes each, and write the run-config of the one to take. With dataset = "
    "'site' list the runs to submit instead."
)


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    from edelweiss.lab.recommend import DRAWS, SEEDS

    takes_run_config(parser)
    parser.add_argument("--to", default="runs/recommend", metavar="FOLDER", help="results; default: runs/recommend")
    parser.add_argument("--jobs", type=whole, default=cores(), help="runs at a time; default: one per core")
    parser.add_argument(
        "--draws", type=whole, default=DRAWS, help=f"step sizes to try of each recipe; default: {DRAWS}"
    )
    parser.add_argument("--seeds", type=whole, default=SEEDS, help=f"runs to compare of each recipe; default: {SEEDS}")
    parser.add_argument("--select", default="", metavar="METRIC", help="such as over-sites.auprc.mean; default: AUROC")


def main(options: argparse.Namespace) -> int:
    """Compare the recipes; returns the exit code."""
    from edelweiss.config import ConfigError, read_overrides
    from edelweiss.lab.commands.sweep import carried_out
    from edelweiss.lab.recommend import at_sites, for_sites, recommend

    try:
        given = read_overrides(options.run_config)
        if at_sites(given):
            print("\n".join(for_sites(given, options.to, options.seeds)))
            return 0
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    how = {"draws": options.draws, "seeds": options.seeds, "select": options.select}
    return carried_out(lambda: recommend(given, options.to, options.jobs, **how), options.to)
