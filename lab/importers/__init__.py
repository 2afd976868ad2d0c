"""Public chest X-rays as site folders: for each source a file that reads its tables, and a row of `IMPORTERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edelweiss.lab.importers import chexpert, mimic, nih, padchest, vindr
from edelweiss.lab.importers.listing import LABELS, Listing
from edelweiss.lab.importers.release import Release


@dataclass(frozen=True)
class Importer:
    """A row of the registry."""

    # takes a `Release` and an argument for each option, and returns what the tables say as a `Listing`. What is wrong
    # with the tables it leaves in the release, or raises by the release's `check`
    read: Callable[..., Listing]
    layout: tuple[str, ...]  # files that the source has, as the owner names them: the main table first, and an image
    # choices for each option of the command line; the first is the default
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folders: tuple[str, ...] = ("",)  # where paths begin, below the folder with the images; patterns
    endings: tuple[str, ...] = ("",)  # what is put behind a path, of which the first that is there counts


IMPORTERS: dict[str, Importer] = {
    "chexpert": Importer(chexpert.read, chexpert.LAYOUT, chexpert.OPTIONS),
    "mimic": Importer(mimic.read, mimic.LAYOUT, mimic.OPTIONS, endings=(".jpg", ".dcm")),
    "nih": Importer(nih.read, nih.LAYOUT, nih.OPTIONS, folders=nih.FOLDERS),
    "padchest": Importer(padchest.read, padchest.LAYOUT, folders=padchest.FOLDERS),
    "vindr": Importer(vindr.read, vindr.LAYOUT, vindr.OPTIONS, endings=(".dicom", ".dcm", ".png", ".jpg")),
}
