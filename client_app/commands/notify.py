"""``notify``: tell something, to see whether it arrives."""

from __future__ import annotations

import argparse
import sys
import time

DESCRIPTION = (
    "Send a test by each way of the table [notify] in your settings, and say what fails. Notifications themselves are "
    "sent by join."
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    parser.add_argument("--policy", required=True, metavar="SITE.toml", help="your settings, with the table [notify]")
    parser.add_argument("--site", default="", help="name of the site; default: that of the settings")


def run(options: argparse.Namespace) -> int:
    """Send it; return 1 if a way fails."""
    from edelweiss.client_app.notify.ways import Notice, UntoldError, ways_in
    from edelweiss.common import ConfigError
    from edelweiss.common.files import read_toml
    from edelweiss.config.notify import Notify

    notify = Notify.read(options.policy)
    if not notify:
        raise ConfigError("notify", [f"{options.policy} names no way: a command, a webhook or mail-to in [notify]"])
    name = str(options.site or read_toml(options.policy).get("site", ""))
    worst = 0
    for way, tell in ways_in({**notify.model_dump(by_alias=True), "site": name}).items():
        try:
            tell(Notice("test", "", f"{name}{': ' * bool(name)}a test of the notifications", time.time()))
            print(f"ok       {way}")
        except UntoldError as error:
            print(f"error    {way}: {error}", file=sys.stderr)
            worst = 1
    return worst
