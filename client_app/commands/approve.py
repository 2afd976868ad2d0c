"""``approve RUN`` and ``refuse RUN``: the operator's decision about a run."""

from __future__ import annotations

import argparse
import sys

from edelweiss.client_app.commands import state_folder

DESCRIPTION = "Approve a waiting run; `runs` shows what it would compute and send."


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    parser.add_argument("run", help="its number as shown by `runs`, or the beginning of it")
    parser.add_argument("--state-dir", type=state_folder, required=True, help="the site's state folder")


def run(options: argparse.Namespace) -> int:
    """Write the decision."""
    return decide(options, "approved")


def decide(options: argparse.Namespace, decision: str) -> int:
    """Write the decision about a run; return 1 if not exactly one matches.

    A waiting run may be approved or refused; a running one may be refused and then gets no more replies.
    """
    from edelweiss.client_app.audit import Audit
    from edelweiss.client_app.policy import TRUST
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
    Audit(records.state, meant[0].run).operator(decision, meant[0].run)
    print(f"run {meant[0].run} is {decision}")
    if decision == "approved":
        print(meant[0].shown.get("privacy", TRUST))
    return 0
