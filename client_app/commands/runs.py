"""``runs``: the runs that wait for the operator, and what each would compute and send."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edelweiss.client_app.commands import state_folder

if TYPE_CHECKING:
    from edelweiss.client_app.policy.records import RunRecord

DESCRIPTION = (
    'Show the runs that wait for your approval (approve = "ask" in your policy): what each would compute and send; and '
    "your decisions in advance."
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    parser.add_argument("--state-dir", type=state_folder, required=True, help="the site's state folder")
    parser.add_argument("--all", action="store_true", help="also those already decided")


def run(options: argparse.Namespace) -> None:
    """Print them, and the decisions in advance that stand."""
    import time

    from edelweiss.client_app.policy.advance import advances
    from edelweiss.client_app.policy.records import Records

    records = Records(options.state_dir)
    found = [record for record in records.runs() if options.all or record.waits]
    print("\n\n".join(map(described, found)) if found else "no run waits for you")
    for each in advances(records):
        if options.all or each.stands(time.time()):
            print(
                f"\ndecision {each.number}, {each.state(records.runs(), time.time())}, by {each.by}: {each.in_words()}"
            )


def described(record: RunRecord) -> str:
    """Describe a run, line by line."""
    import time

    word = record.decision if record.waits or record.decision != "waiting" else "no longer waiting"
    word += f" in advance (decision {record.advance})" * bool(record.advance)
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.began))
    shown = (f"  {key}: {' '.join(value.split())}" for key, value in record.shown.items())  # partly chosen by the run
    return "\n".join([f"run {record.run}: {word}, since {began}", *shown])
