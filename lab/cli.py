"""The command ``edelweiss``: runs in the local engine or at a SuperLink, and the tools for finished runs."""

from __future__ import annotations

import argparse
import gc
import signal
import sys

from edelweiss.lab.commands import (
    compare,
    dashboard,
    export,
    import_images,
    load_plug_ins,
    predict,
    privacy,
    recommend,
    report,
    resume,
    study,
    submit,
    sweep,
    takes_plug_ins,
    takes_run_config,
)
from edelweiss.lab.commands.misplaced import TAKES_KEYS, as_keys, misplaced

COMMANDS = {
    "submit": submit,
    "resume": resume,
    "dashboard": dashboard,
    "compare": compare,
    "study": study,
    "sweep": sweep,
    "recommend": recommend,
    "privacy": privacy,
    "report": report,
    "predict": predict,
    "export": export,
    "import": import_images,
}
READS_RUNS = (compare, report, predict, export)


def main(arguments: list[str] | None = None) -> int:
    """Run a job; returns the exit code: 0, 1 for a run that failed, 2 for a configuration that cannot be used.

    `submit` and `resume` also return 3 for a run that was stopped, and 4 for one that is lost.
    """
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="edelweiss",
        description="Run a job on this machine, in the local engine: no Ray, no SuperLink.",
        epilog="Keys and defaults are in pyproject.toml, under [tool.flwr.app.config].",
        allow_abbrev=False,
    )
    takes_run_config(parser)
    commands = parser.add_subparsers(dest="command", metavar=" | ".join(COMMANDS))
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.SUMMARY, description=command.DESCRIPTION, allow_abbrev=False)
        if name in given:  # what the others take may be slow to import
            command.takes(own)
            if command in READS_RUNS:
                takes_plug_ins(own)
    if wrong := misplaced(given, COMMANDS):
        parser.error("; ".join(wrong))
    options, rest = parser.parse_known_args(given)
    if rest:
        parser.error(as_keys(rest) if options.command in TAKES_KEYS else f"unknown: {' '.join(rest)}")

    # SIGTERM ends a run as Ctrl-C does: its files are closed, its memory is released.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if plug_ins := getattr(options, "plug_in", []):
            from edelweiss.config import ConfigError

            try:
                load_plug_ins(plug_ins)
            except ConfigError as error:
                print(error, file=sys.stderr)
                return 2
        if options.command:
            code: int = COMMANDS[options.command].main(options)
            return code
        return run(options.run_config)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run(overrides: list[str]) -> int:
    """Run a job with these ``--run-config`` values; returns the exit code."""
    gc.disable()  # while modules are imported: of all that they make, nothing is garbage
    from edelweiss.config import MISTAKES, ConfigError, read_overrides
    from edelweiss.server_app import coordinator, local, simulate  # noqa: F401  # the first two are what a run imports

    gc.freeze()
    gc.enable()
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
