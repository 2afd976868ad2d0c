"""``peers``: the other sites of the study, whose sums with this site's a coordinator may learn."""

from __future__ import annotations

import argparse
from pathlib import Path

from edelweiss.client_app.commands import state_folder

DESCRIPTION = (
    "Print the rule that pins the other sites of a study, from their public keys; and show, or accept a change of, the "
    "sites that runs with secure aggregation had so far."
)
ACCEPT = (
    "let the next run have other sites than those before, the ones of your rules. The difference of two sums over "
    "different sites is about the few that differ: with two runs of one model a coordinator learns theirs"
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    parser.add_argument("keys", nargs="*", type=Path, help="public keys (OpenSSH's format), NAME.pub for site NAME")
    parser.add_argument("--state-dir", type=state_folder, help="the site's state folder: show the sites of its runs")
    parser.add_argument("--accept", action="store_true", help=ACCEPT)


def run(options: argparse.Namespace) -> int:
    """Print them; return 2 if an option is missing or a file holds no key."""
    from edelweiss.client_app.audit import Audit
    from edelweiss.client_app.masking import FOLDER, ROSTER, roster
    from edelweiss.client_app.policy.records import Records
    from edelweiss.common import ConfigError
    from edelweiss.federation.seals import public_key_hash

    if options.accept and not options.state_dir:
        raise ConfigError("command line", ["--accept needs --state-dir, the site's state folder"])
    if not (options.keys or options.state_dir):
        raise ConfigError("command line", ["name the public keys of the other sites, or --state-dir"])
    if options.keys:
        try:
            hashes = {file.stem: public_key_hash(file) for file in options.keys}
        except ValueError as error:
            raise ConfigError("command line", [str(error)]) from None
        print("\n".join(["[policy.peers]", *(f'"{name}" = "{key}"' for name, key in hashes.items())]))
    if options.state_dir:
        records = Records(options.state_dir)
        known = roster(folder := records.folder / FOLDER)
        for name, key in (known or {}).items():
            print(f"runs so far had {name}: {key}")
        if known is None:
            print("no run with secure aggregation so far: the first decides whose sums are taken")
        elif options.accept:
            (folder / ROSTER).unlink()
            Audit(records.state).operator("accepted other sites in sums than before")
            print(f"accepted: the next run has the sites of your rules. Mind: {ACCEPT}")
    return 0
