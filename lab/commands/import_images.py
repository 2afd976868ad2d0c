"""``edelweiss import SOURCE FOLDER TARGET``: make a site folder of a public chest X-ray source."""

from __future__ import annotations

import argparse
import signal
import sys

from edelweiss.common import unknown
from edelweiss.datasets.errors import DataError
from edelweiss.lab.importers import IMPORTERS
from edelweiss.lab.importers.site_folder import import_source


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns the exit code: 0, 1 for data, 2 for a command line that cannot be used."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["import"] and given[1:] and given[1] not in IMPORTERS and not given[1].startswith("-"):
        print(unknown("source", given[1], IMPORTERS), file=sys.stderr)
        return 2
    options = vars(_parser().parse_args(given))
    name, folder, target = options.pop("name"), options.pop("folder"), options.pop("target")
    images, copy = options.pop("images"), options.pop("copy")

    # Told to stop, an import removes what it has begun, as with Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        import_source(name, folder, target, options, images, copy)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="edelweiss import", description="Prepare data for a site.")
    commands = parser.add_subparsers(required=True, metavar="import")
    importing = commands.add_parser(
        "import", description="Make a site folder of a source as its owner publishes it, by docs/chest-x-rays.md."
    )
    sources = importing.add_subparsers(required=True, dest="name", metavar="SOURCE", help=", ".join(IMPORTERS))
    for name, importer in IMPORTERS.items():
        command = sources.add_parser(name, description=f"The source has {', '.join(importer.layout)}.")
        command.add_argument("folder", metavar="FOLDER", help="with the source's files")
        command.add_argument("target", metavar="TARGET", help="the site folder to make")
        command.add_argument("--images", default="", metavar="FOLDER", help="where the images are; default: there")
        command.add_argument("--copy", action="store_true", help="copy the images, and do not link their folder")
        for option, choices in importer.options.items():
            command.add_argument(f"--{option}", choices=choices, default=choices[0], help=f"default: {choices[0]}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
