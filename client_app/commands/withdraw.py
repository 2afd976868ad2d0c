"""``withdraw``: take back a decision in advance."""

from __future__ import annotations

import argparse
import sys

from edelweiss.client_app.commands import state_folder

DESCRIPTION = (
    "Take back a decision in advance, by its number in `runs`: it decides no other run. To leave a run that has begun, "
    "`refuse` it."
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    parser.add_argument("number", type=int, help="its number as shown by `runs`")
    parser.add_argument("--state-dir", type=state_folder, required=True, help="the site's state folder")


def run(options: argparse.Namespace) -> int:
    """Withdraw it; return 1 if there is none to withdraw."""
    import getpass

    from edelweiss.client_app.policy.advance import read_advances, withdraw, withdrawn_by
    from edelweiss.client_app.policy.records import Records

    records, number = Records(options.state_dir), options.number
    try:
        done = withdraw(records, number, getpass.getuser(), "on the command line")
    except LookupError:
        known, damaged = read_advances(records)
        numbers = [*(each.number for each in known), *(each.number for each in damaged if each.number)]
        listed = ", ".join(map(str, sorted(numbers))) or "none"
        print(f"error: no decision in advance has the number {number}; there are: {listed}", file=sys.stderr)
        return 1
    if not done:
        print(f"error: decision {number} was withdrawn before, {withdrawn_by(records, number)}", file=sys.stderr)
        return 1
    print(f"decision {number} is withdrawn; runs that it let begin go on until you refuse them")
    return 0
