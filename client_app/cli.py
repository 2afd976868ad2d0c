"""``edelweiss-site COMMAND``: the commands of a hospital's operator, one file each in ``client_app/commands``.

Only the file of the given command is imported, and heavy imports happen when it runs.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

COMMANDS = {
    "approve": "approve a waiting run, or runs of a study in advance",
    "audit": "show what the site received and sent, and verify the log",
    "budget": "show the privacy budget: what runs have cost, and what is left",
    "doctor": "test everything that join needs, and say how to fix what fails",
    "extract": "write your table from a database, by a query that you have approved",
    "join": "connect to a coordinator and answer its messages",
    "notify": "send a test of the notifications in your settings",
    "password": "set who may open the site's page, and with which password",
    "peers": "print the rule that pins the other sites of a study; accept others in sums than before",
    "personalise": "train your own head on the body of a finished run",
    "predict": "score patients with a model that your site has saved",
    "refuse": "refuse a waiting run, leave one that has begun, or refuse runs in advance",
    "runs": "show the waiting runs, and what each would compute and send",
    "study": "draft a study file from your table",
    "withdraw": "take back a decision in advance",
}
"""The commands. Each file has DESCRIPTION, declare(parser), which adds its options, and run(options), which returns the
exit code, or None for 0."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    int
        0; 1 for unusable data, models or state folders; 2 for an invalid configuration; else the command's own.
    """
    from edelweiss.common import Registry

    Registry.discovers = False  # the policy decides which plug-ins run here
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="edelweiss-site", description="The commands of a hospital's operator.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in COMMANDS.items():
        if [name] == words[:1]:
            module = import_module(f"edelweiss.client_app.commands.{name}")
            module.declare(commands.add_parser(name, help=summary, description=module.DESCRIPTION))
        else:
            commands.add_parser(name, help=summary)
    options = parser.parse_args(words)

    try:
        return module.run(options) or 0
    except Exception as error:
        return explained(error)


def explained(error: Exception) -> int:
    """Print a user's mistake and return its exit code; re-raise any other exception."""
    from edelweiss.client_app.errors import RefusedError
    from edelweiss.client_app.extract import ExtractError
    from edelweiss.client_app.memory import StateError
    from edelweiss.client_app.personalise import PersonaliseError
    from edelweiss.config import MISTAKES, ConfigError

    if isinstance(error, ConfigError):
        print(error, file=sys.stderr)
        return 2
    if isinstance(error, (*MISTAKES, StateError, PersonaliseError, RefusedError, ExtractError)):
        print(f"error: {error}", file=sys.stderr)
        return 1
    raise error


if __name__ == "__main__":
    sys.exit(main())
