"""``dashboard``: the coordinator's page."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

SUMMARY = "the coordinator's page: hospitals, runs, reports"
DESCRIPTION = "Serve the coordinator's page over a folder of runs, and over a SuperLink if one is named."


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--runs-dir", default="runs", metavar="FOLDER", help="where run folders are; default: runs")
    parser.add_argument("--page", default="127.0.0.1:8480", metavar="ADDRESS", help="default: 127.0.0.1:8480")
    parser.add_argument(
        "--accounts", default="~/.config/edelweiss/dashboard.json", metavar="FILE", help="who may look, and who may run"
    )
    parser.add_argument("--account", metavar="NAME:ROLE", help="add an account (role look or run), print its password")
    parser.add_argument("--superlink", default="", metavar="HOST:PORT", help="as for submit; else runs are run here")
    parser.add_argument(
        "--runs-there", default="", metavar="FOLDER", help="where the ServerApp has --runs-dir, if it is another path"
    )
    security = parser.add_mutually_exclusive_group()
    security.add_argument("--root-certificates", default="", metavar="ca.crt", help="whose certificates to trust")
    security.add_argument("--insecure", action="store_true", help="no encryption: on one machine only")
    parser.add_argument("--certificate", default="", metavar="operator.crt", help="what to show there")
    parser.add_argument("--key", default="", metavar="operator.key", help="the private key of --certificate")
    parser.add_argument("--study-key", default="", metavar="FILE", help="as for submit")
    parser.add_argument("--executor", default="", metavar="FILE", help="as for submit")
    parser.add_argument("--sites", default="", metavar="FOLDER", help="the hospitals' public keys, NAME.pub each")


def main(options: argparse.Namespace) -> int:
    """Serve the page until told to end; returns the exit code."""
    from edelweiss.common import ConfigError
    from edelweiss.lab.commands.submit import Connection, unsafe
    from edelweiss.lab.dashboard import ROLES
    from edelweiss.web import Accounts, address_of, application, listen, serve, url_of

    logging.getLogger("edelweiss").addHandler(logging.StreamHandler())
    accounts = Accounts(Path(options.accounts).expanduser(), ROLES)
    try:
        if options.account:
            name, _, role = options.account.partition(":")
            print(f"{name}: {accounts.set(name, role or 'look')}")
            return 0
        if not accounts.everybody():
            print(f"user admin, role run, password {accounts.set('admin', 'run')}", flush=True)
        try:
            address = address_of(options.page)
        except ValueError as error:
            raise ConfigError("dashboard", [f"--page {options.page!r} {error}"]) from None
        if wrong := unsafe(options):
            raise ConfigError("dashboard", wrong)
        listening = listen(address)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    from edelweiss.lab.dashboard.page import Dashboard  # slow to import, and accounts do without
    from edelweiss.lab.dashboard.superlink import SuperLink

    link, words = None, []
    if options.superlink:
        connection = Connection(options.superlink, options.root_certificates, options.certificate, options.key)
        link = SuperLink(connection, options.sites)
        words = ["submit", "--superlink", options.superlink]
        words += ["--root-certificates", options.root_certificates] if options.root_certificates else ["--insecure"]
        given = {"--certificate": options.certificate, "--key": options.key}
        if options.study_key:
            given |= {"--study-key": options.study_key, "--executor": options.executor, "--sites": options.sites}
        words += [word for option, value in given.items() if value for word in (option, value)]
    dashboard = Dashboard(Path(options.runs_dir).expanduser().absolute(), link, tuple(words), options.runs_there)
    print(f"the coordinator's page: {url_of(address, listening)}", flush=True)
    serve(application(dashboard.page(accounts)), listening)
    return 0
