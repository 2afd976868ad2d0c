"""``approve`` and ``refuse``: the operator's decision about a run that waits, or about runs in advance."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edelweiss.client_app.commands import state_folder

if TYPE_CHECKING:
    from edelweiss.client_app.policy.advance import Decision
    from edelweiss.client_app.policy.records import Records, RunRecord

DESCRIPTION = (
    "Approve a waiting run; `runs` shows what it would compute and send. With --until, approve in advance: runs within "
    "all of the limits that you name begin without waiting; any other run waits. Name a RUN to take its algorithm, "
    "problem, model, release, rounds and key. `withdraw` takes it back."
)

NAMES = {
    "study-key": ("KEY", "the public study key that signs the runs, its 64 digits or file; without it anybody's runs"),
    "algorithm": ("NAMES", "with commas between several"),
    "problem": ("NAMES", "likewise"),
    "model": ("NAMES", "likewise"),
    "until": ("YYYY-MM-DD", "decide in advance, until the end of this day"),
    "comment": ("TEXT", "goes into the audit log"),
}
LIMITS = {
    "runs": ("N", "how many may begin; a resumed run counts again"),
    "rounds": ("N", "most rounds of each"),
    "epsilon": ("E", "differential privacy: most ε of all of them together; without it, runs without"),
    "release": ("HASH", "of the app with the runs' plug-ins; default: the installed one, without any"),
    "label": ("NAMES", "the label that they train on, where your keys name none"),
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    declare_both(parser)
    ahead = parser.add_argument_group("limits of an approval in advance")
    for key, (metavar, text) in LIMITS.items():
        ahead.add_argument(f"--{key}", metavar=metavar, help=text)
    ahead.add_argument(
        "--secure-aggregation", action="store_const", const="yes", help="only runs with secure aggregation"
    )


def declare_both(parser: argparse.ArgumentParser) -> None:
    """Name the options that a refusal has, too."""
    parser.add_argument("run", nargs="?", default="", help="its number as shown by `runs`, or the beginning of it")
    parser.add_argument("--state-dir", type=state_folder, required=True, help="the site's state folder")
    ahead = parser.add_argument_group("in advance")
    for key, (metavar, text) in NAMES.items():
        ahead.add_argument(f"--{key}", metavar=metavar, help=text)


def run(options: argparse.Namespace) -> int:
    """Write the decision."""
    return decide(options, "approved")


def decide(options: argparse.Namespace, decision: Decision) -> int:
    """Write the decision about a run, or in advance; return 1 if not exactly one run matches, 2 for wrong limits.

    A waiting run may be approved or refused; a running one may be refused and then gets no more replies.
    """
    from edelweiss.client_app.audit import Audit
    from edelweiss.client_app.policy import TRUST
    from edelweiss.client_app.policy.records import Records
    from edelweiss.common import ConfigError

    records = Records(options.state_dir)
    limits = {key: str(text) for key in (*NAMES, *LIMITS, "secure-aggregation") if (text := _given(options, key))}
    if "until" in limits:
        return _in_advance(records, options.run, limits, decision)
    if beside := [key for key in limits if key != "comment"]:
        raise ConfigError("command line", [f"--{key}: it is for decisions in advance: add --until" for key in beside])
    if not options.run:
        raise ConfigError("command line", ["name a run, or --until to decide in advance"])
    also = decision == "refused"
    open_ = [run for run in records.runs() if run.waits or (also and run.open and run.decision != "refused")]
    which = "waits for you or has begun" if also else "waits for you"
    if (meant := _one(open_, options.run, which)) is None:
        return 1
    if not records.decide(meant, decision, first=meant.waits):
        print(f"error: run {meant.run} was decided at the same moment; that stands: see `audit`", file=sys.stderr)
        return 1
    comment = f": {limits['comment']}" if "comment" in limits else ""
    Audit(records.state, meant.run).operator(f"{decision}{comment}", meant.run)
    print(f"run {meant.run} is {decision}")
    if decision == "approved":
        print(meant.shown.get("privacy", TRUST))
    return 0


def _given(options: argparse.Namespace, key: str) -> object:
    return getattr(options, key.replace("-", "_"), None)


def _one(among: list[RunRecord], begins: str, which: str) -> RunRecord | None:
    """Return the only run whose number begins so; None after saying that there are others."""
    meant = [record for record in among if record.run.startswith(begins)]
    if len(meant) == 1:
        return meant[0]
    listed = ", ".join(record.run for record in among) or "none"
    found = f"{len(meant)} runs begin" if meant else f"no run that {which} begins"
    print(f"error: {found} with {begins!r}; there are: {listed}", file=sys.stderr)
    return None


def _in_advance(records: Records, run: str, limits: dict[str, str], decision: Decision) -> int:
    import getpass

    from edelweiss.client_app.policy.advance import (
        LIMITS,
        advance_of,
        advances,
        decide_in_advance,
        next_number,
        terms_in,
    )
    from edelweiss.common import ConfigError
    from edelweiss.federation.fingerprint import release
    from edelweiss.federation.ticket import study_key

    advances(records)  # all of them can be read
    if run:
        known = [record for record in records.runs() if record.terms]
        if (like := _one(known, run, "came with its terms")) is None:
            return 1
        taken = terms_in(like)
        limits = {**{key: text for key, text in taken.items() if decision == "approved" or key not in LIMITS}, **limits}
    elif decision == "approved":
        limits.setdefault("release", release())
    if limits.get("study-key"):
        try:
            limits["study-key"] = study_key(limits["study-key"])
        except ValueError as error:
            raise ConfigError("decision in advance", [f"study-key: {error}"]) from None
    found = advance_of(limits, decision, getpass.getuser(), next_number(records))
    if not decide_in_advance(records, found, "on the command line"):
        print("error: somebody decided in advance at the same moment: see `runs`, and decide again", file=sys.stderr)
        return 1
    print(f"decision {found.number}, {decision} in advance: {found.in_words()}")
    if found.approves and not found.study_key:
        print("It names no study key: whoever has the coordinator's servers can start these runs.")
    if found.study_key:
        print("It covers signed runs, while study-keys in your rules have this key.")
    return 0
