"""``password``: who may open the site's page."""

from __future__ import annotations

import argparse
import sys

from edelweiss.client_app.commands import state_folder

DESCRIPTION = (
    "Set a person's password and role for the site's page (page = ... in your settings): read from the standard input "
    "if that is no terminal, else generated and printed. It counts at once."
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    from edelweiss.client_app.page.beside import ROLES

    parser.add_argument("name", help="the person's name, which the audit log has beside each decision")
    parser.add_argument("--state-dir", type=state_folder, required=True, help="the site's state folder")
    parser.add_argument("--role", choices=ROLES, default=ROLES[-1], help="look: see everything; decide: approve, too")
    parser.add_argument("--remove", action="store_true", help="remove the person instead")


def run(options: argparse.Namespace) -> None:
    """Set it."""
    from edelweiss.client_app.page.beside import accounts_in

    accounts = accounts_in(options.state_dir)
    if options.remove:
        accounts.remove(options.name)
        print(f"{options.name} may no longer open the page")
        return
    given = "" if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    password = accounts.set(options.name, options.role, given)
    print(f"{options.name} may {options.role}" + ("" if given else f"; password: {password}"))
