"""``edelweiss-site COMMAND``: what a hospital does by itself; each command is a file in ``client_app/commands``.

Only the file of the command that is asked for is imported, and it imports what is heavy when it runs.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

COMMANDS = {
    "approve": "let a run that waits for you begin",
    "audit": "show what came and what left, and check that the log is whole",
    "doctor": "try all that join needs, and say how to mend what fails",
    "join": "connect to a coordinator, answer its messages, and stay",
    "personalise": "train a head of your own on the body of a finished run",
    "predict": "score patients with a model that your site has kept",
    "refuse": "turn a run away that waits for you, or withdraw from one that has begun",
    "runs": "show the runs that wait for you, and what each would compute and send",
}
"""What there is. The file has DESCRIPTION, declare(parser), which names its options, and run(options), which returns
the exit code, or None for 0."""


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says.

    Returns
    -------
    int
        0; 1 for data, a model or a state folder that cannot be used; 2 for a configuration; else what the command says.
    """
    from edelweiss.common import Registry

    Registry.discovers = False  # what runs here beside this app, the policy says
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="edelweiss-site", description="What a hospital does by itself.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in COMMANDS.items():
        if [name] == given[:1]:
            module = import_module(f"edelweiss.client_app.commands.{name}")
            module.declare(commands.add_parser(name, help=summary, description=module.DESCRIPTION))
        else:
            commands.add_parser(name, help=summary)
    options = parser.parse_args(given)

    try:
        return module.run(options) or 0
    except Exception as error:
        return explained(error)


def explained(error: Exception) -> int:
    """Print a user's mistake and return the exit code for it; what is none is raised again."""
    from edelweiss.client_app.errors import RefusedError
    from edelweiss.client_app.memory import StateError
    from edelweiss.client_app.personalise import PersonaliseError
    from edelweiss.config import MISTAKES, ConfigError

    if isinstance(error, ConfigError):
        print(error, file=sys.stderr)
        return 2
    if isinstance(error, (*MISTAKES, StateError, PersonaliseError, RefusedError)):
        print(f"error: {error}", file=sys.stderr)
        return 1
    raise error


if __name__ == "__main__":
    sys.exit(main())
