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

    from edelweiss.client_app.policy.advance import advances, withdraw
    from edelweiss.client_app.policy.records import Records

    records = Records(options.state_dir)
    known = {each.number: each for each in advances(records)}
    found = known.get(options.number)
    if found is None:
        listed = ", ".join(map(str, known)) or "none"
        print(f"error: no decision in advance has the number {options.number}; there are: {listed}", file=sys.stderr)
        return 1
    if not withdraw(records, found, getpass.getuser(), "on the command line"):
        by = next(each.withdrawn for each in advances(records) if each.number == found.number)
        print(f"error: decision {found.number} was withdrawn before, {by}", file=sys.stderr)
        return 1
    print(f"decision {found.number} is withdrawn; runs that it let begin go on until you refuse them")
    return 0
