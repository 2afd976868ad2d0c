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


def run(options: argparse.Namespace) -> int:
    """Print them, and the decisions in advance that stand; return 2 if files are damaged, which are named last."""
    import sys
    import time

    from edelweiss.client_app.policy.advance import damages, read_advances
    from edelweiss.client_app.policy.records import Records
    from edelweiss.common import ConfigError

    records = Records(options.state_dir)
    runs, _ = records.readable()
    found = [record for record in runs if options.all or record.waits]
    print("\n\n".join(map(described, found)) if found else "no run waits for you")
    for each in read_advances(records)[0]:
        if options.all or each.stands(time.time()):
            print(f"\ndecision {each.number}, {each.state(runs, time.time())}, by {each.by}: {each.in_words()}")
    if problems := damages(records):
        print(ConfigError("state-dir", problems), file=sys.stderr)
        return 2
    return 0


def described(record: RunRecord) -> str:
    """Describe a run, line by line."""
    import time

    from edelweiss.common import printable

    word = record.decision if record.waits or record.decision != "waiting" else "no longer waiting"
    word += f" in advance (decision {record.advance})" * bool(record.advance)
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.began))
    # Partly chosen by the run, and read on a terminal.
    shown = (f"  {printable(key)}: {printable(' '.join(str(value).split()))}" for key, value in record.shown.items())
    return "\n".join([f"run {record.run}: {word}, since {began}", *shown])
