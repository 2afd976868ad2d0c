"""``python -m server_app``: a run in the local engine or at a SuperLink, and what comes after, on the command line."""

from __future__ import annotations

import argparse
import signal
import sys

from keys.imports import importing
from server_app.commands import compare, export, predict, report, sweep

COMMANDS = {"compare": compare, "sweep": sweep, "report": report, "predict": predict, "export": export}


def main(arguments: list[str] | None = None) -> int:
    """Run a job; returns the exit code: 0, 1 for a run that stopped, 2 for a configuration that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m server_app",
        description="Run a job on this machine, in the local engine: no Ray, no SuperLink.",
        epilog="Keys and defaults are in pyproject.toml, under [tool.flwr.app.config].",
    )
    takes_run_config(parser)
    commands = parser.add_subparsers(dest="command", metavar=" | ".join(["submit", *COMMANDS]))
    submit = commands.add_parser(
        "submit",
        help="run it at a SuperLink instead",
        description="Run a job at a SuperLink: show its log, and end as it did.",
    )
    submit.add_argument("--superlink", required=True, metavar="HOST:PORT", help="where jobs are taken, as a rule 8000")
    security = submit.add_mutually_exclusive_group(required=True)
    security.add_argument("--root-certificates", metavar="ca.crt", help="whose certificates to trust")
    security.add_argument("--insecure", action="store_true", help="no encryption: on one machine only")
    takes_run_config(submit)
    for name, command in COMMANDS.items():
        command.takes(commands.add_parser(name, help=command.SUMMARY, description=command.DESCRIPTION))
    options = parser.parse_args(arguments)

    # Told to stop by a service manager, a run ends as with Ctrl-C: its files are closed, its memory is released.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.command:
            return COMMANDS[options.command].main(options) if options.command in COMMANDS else submitted(options)
        return run(options.run_config)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def takes_run_config(parser: argparse.ArgumentParser) -> None:
    """Add the option that both ways have."""
    parser.add_argument(
        "--run-config",
        action="append",
        default=[],
        metavar="'KEY=VALUE ...' | FILE.toml",
        help="change keys; may be repeated, later ones win",
    )


def submitted(options: argparse.Namespace) -> int:
    """Run a job at a SuperLink; returns the exit code. It imports neither torch nor Flower."""
    from keys import ConfigError
    from server_app.submission import Connection, read_run_config, run_at

    try:
        run_config = read_run_config(options.run_config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return run_at(Connection(options.superlink, options.root_certificates or ""), run_config)


def run(overrides: list[str]) -> int:
    """Run a job with these ``--run-config`` values; returns the exit code."""
    with importing():
        from config import MISTAKES, ConfigError, read_overrides
        from server_app.api import simulate

    try:
        simulate(read_overrides(overrides), quiet=False)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
