"""``approve RUN`` and ``refuse RUN``: the operator decides about a run."""

from __future__ import annotations

import argparse
import sys

from edelweiss.client_app.commands import state_folder

DESCRIPTION = "Let a run begin that waits for you; `runs` shows what it would compute and send."


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    parser.add_argument("run", help="its number, or the beginning of it, as `runs` shows it")
    parser.add_argument("--state-dir", type=state_folder, required=True, help="the site's")


def run(options: argparse.Namespace) -> int:
    """Write the decision."""
    return decide(options, "approved")


def decide(options: argparse.Namespace, decision: str) -> int:
    """Write a decision about the one run that is meant; returns 1 when there is none, or more than one.

    A run that waits may be approved; one that is going on may be refused as well, and is answered no more.
    """
    from edelweiss.client_app.policy.records import Records

    records = Records(options.state_dir)
    also = decision == "refused"
    open_ = [run for run in records.runs() if run.waits or (also and run.open and run.decision != "refused")]
    meant = [record for record in open_ if record.run.startswith(options.run)]
    if len(meant) != 1:
        listed = ", ".join(record.run for record in open_) or "none"
        which = "waits for you or has begun" if also else "waits for you"
        found = f"{len(meant)} runs begin" if meant else f"no run that {which} begins"
        print(f"error: {found} with {options.run!r}; there are: {listed}", file=sys.stderr)
        return 1
    records.decide(meant[0], decision)
    print(f"run {meant[0].run} is {decision}")
    return 0
