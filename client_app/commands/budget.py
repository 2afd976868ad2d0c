"""``budget``: what runs have cost the site's patients, and what is left of its privacy budget."""

from __future__ import annotations

import argparse

from edelweiss.client_app.commands import state_folder

DESCRIPTION = (
    "Show the site's privacy budget ([privacy] in its rules): what each run has cost its patients, and what is left."
)
ACCEPT = (
    "after the state folder was moved or restored: say that nothing was answered since the copy was made. If that is "
    "not so, patients lose more than the budget says"
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    parser.add_argument("--state-dir", type=state_folder, required=True, help="the site's state folder")
    parser.add_argument("--policy", required=True, help="the file with the site's rules, site.toml")
    parser.add_argument("--accept", action="store_true", help=ACCEPT)


def run(options: argparse.Namespace) -> int:
    """Print it; return 2 without a budget."""
    from edelweiss.client_app.audit import Audit
    from edelweiss.client_app.policy.records import Records
    from edelweiss.client_app.policy.rules import Policy
    from edelweiss.client_app.privacy.ledger import Ledger, spent_in_words
    from edelweiss.common import ConfigError

    budget = Policy.read(options.policy).budget
    if not budget:
        raise ConfigError("budget", [f"{options.policy} has none: set epsilon in a table [privacy]"])
    records = Records(options.state_dir)
    if records.has_secret:  # otherwise there is no ledger to accept
        ledger = Ledger(records.folder, records.secret, budget)
        if options.accept:
            ledger.accept()
            act = "accepted the privacy ledger of a folder that was moved or restored"
            Audit(records.state).operator(act, of_copy=True)
        for part, name, answers, epsilon in ledger.runs():
            print(f"run {name}: answers about {part} patients: {answers}, by themselves ε = {epsilon:.3g}")
    print(spent_in_words(records, budget))
    return 0
