"""``import SOURCE FOLDER TARGET``: a public chest X-ray source as a site folder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

SUMMARY = "make a site folder of a public chest X-ray source"
DESCRIPTION = "Make a site folder of a source as its owner publishes it; see docs/chest-x-rays.md."


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments, which depend on the source."""
    from edelweiss.lab.importers import IMPORTERS

    sources = parser.add_subparsers(required=True, dest="source", metavar="SOURCE", help=", ".join(IMPORTERS))
    for name, importer in IMPORTERS.items():
        own = sources.add_parser(name, description=f"The source has {', '.join(importer.layout)}.", allow_abbrev=False)
        own.add_argument("folder", metavar="FOLDER", help="with the source's files")
        own.add_argument("target", metavar="TARGET", help="the site folder to make")
        own.add_argument("--images", default="", metavar="FOLDER", help="where the images are; default: FOLDER")
        own.add_argument("--copy", action="store_true", help="copy the images instead of linking their folder")
        for option, choices in importer.options.items():
            own.add_argument(f"--{option}", choices=choices, default=choices[0], help=f"default: {choices[0]}")


def main(options: argparse.Namespace) -> int:
    """Import a source; returns the exit code."""
    from edelweiss.datasets.errors import DataError
    from edelweiss.lab.importers import IMPORTERS
    from edelweiss.lab.importers.site_folder import import_source

    chosen = {option: getattr(options, option) for option in IMPORTERS[options.source].options}
    try:
        import_source(options.source, options.folder, options.target, chosen, options.images, options.copy)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
