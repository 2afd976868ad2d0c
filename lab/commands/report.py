"""``report RUN``: the report of a run, written again."""

from __future__ import annotations

import argparse

from edelweiss.lab.commands import print_result

SUMMARY = "write the report of a run again"
DESCRIPTION = (
    "Write report.html, curves, the model card and the TRIPOD+AI table into a run folder, from its files: of a run "
    "with report=false, on another machine, or with pictures for a paper."
)


def takes(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--pictures", action="store_true", help="also write each picture as PDF and PNG, to RUN/pictures"
    )


def main(options: argparse.Namespace) -> int:
    """Write the report; returns the exit code."""
    from edelweiss.common.files import reason
    from edelweiss.federation import RunError
    from edelweiss.lab.report import write_pictures, write_report

    def written() -> list[str]:
        try:
            made = [write_report(options.run)]
            return [str(path) for path in [*made, *(write_pictures(options.run) if options.pictures else [])]]
        except OSError as error:
            raise RunError(f"{options.run}: the report cannot be written ({reason(error)})") from None

    return print_result(written)
