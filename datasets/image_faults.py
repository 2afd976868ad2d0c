"""Faults of image files, by kind; the kind decides whether such files may be left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from edelweiss.datasets.errors import DataError, examples

NAMED = 50  # images named in warnings; errors name only a few


class Kind(NamedTuple):
    """A kind of fault, and its fix.

    ``bad`` is a fault of the file itself, whose row may be left out up to a share; ``refused`` is an error; ``note`` is
    harmless.
    """

    wrong: str
    mend: str
    level: Literal["bad", "refused", "note"] = "bad"


MISSING = Kind("are missing", "put them there or remove their lines")
FOLDER = Kind("are folders, as of a series", "list the files in them that are to be used")
ADDRESS = Kind(
    "are addresses, from which nothing is fetched",
    "export the images into the folder, from DICOMweb for example with dicomweb_client --url URL retrieve series "
    "--study UID --series UID full --save --output-dir images",
    "refused",
)
LOOP = Kind("are symlink loops", "mend the links or remove the lines")
UNOPENED = Kind("cannot be opened", "let this site read them")
UNREADABLE = Kind("cannot be read", "replace them or leave them out")
NO_IMAGE = Kind("are not images", "replace them or leave them out")
VOLUME = Kind(
    "are volumes or arrays, which are not read",
    "write each slice that is to be used as a PNG, TIFF or DICOM file of its own",
)
ARCHIVE = Kind("are archives", "unpack them, and list the files in them")
FRAMES = Kind("hold several frames", "write a file for each frame that is to be used, or leave them out")
PIXELLESS = Kind("are DICOM files without pixels", "leave out reports, plans and the like")
ENCRYPTED = Kind("are encrypted", "export them without encryption")
CODEC = Kind(
    "are DICOM files with a transfer syntax that no installed package reads",
    "pip install -c constraints.txt '.[dicom-jpeg]' for JPEG Lossless, JPEG-LS and JPEG of 12 bits; or decompress them",
)
PYDICOM = Kind("are DICOM files, which need pydicom", "pip install -c constraints.txt '.[dicom]'", "refused")
OTHER_SIZE = Kind("differ in size from most", "set image-size, to which all images are scaled", "refused")
OUTSIDE = Kind("lie outside the folder", "put copies of them into it", "refused")
LINKED = Kind(
    "are links to files outside the folder",
    "put copies of the files into the folder or, if the links are the site's own, set its key follow-links = true",
    "refused",
)
TWICE = Kind(
    "are listed more than once",
    "keep one line of each; lines of one path with equal label, patient and view are merged",
    "refused",
)
TWIN = Kind("are identical to another image", "keep one of them, or check that labels and patient agree", "note")
MISNAMED = Kind("have a format other than their names say; the content decides", "rename them", "note")

PASSING = (UNOPENED, CODEC)  # may disappear without a change of the file


class BadImageError(ValueError):
    """An unusable image file: the kind of its fault, and details."""

    def __init__(self, kind: Kind, detail: str = "") -> None:
        super().__init__(detail or kind.wrong)
        self.kind, self.detail = kind, detail


class Faults:
    """The faults of a set of images, by kind.

    `place` is the path that lists the images, for the site's own log, and `public` its public name; `share`, in [0, 1),
    is the largest share of bad ones among the `rows` images that may be left out.
    """

    def __init__(self, place: Path, public: str, share: float = 0.0, rows: int = 0) -> None:
        self.place, self.public, self.share, self.rows = place, public, share, rows
        self.found: list[tuple[Kind, str, str]] = []  # kind, image, details

    def add(self, kind: Kind, name: str, detail: str = "") -> None:
        """Add a fault of an image."""
        self.found.append((kind, name, detail))

    @property
    def bad(self) -> set[str]:
        """Names of the bad images."""
        return {name for kind, name, _ in self.found if kind.level == "bad"}

    @property
    def too_many(self) -> bool:
        """Whether more images are bad than may be left out."""
        return bool(self.bad) and (not self.rows or len(self.bad) / self.rows > self.share)

    def errors(self) -> list[DataError]:
        """Return an error for each fatal kind, naming the first few images."""
        errors = [
            self._error(kind, examples(names), len(names), kind.mend)
            for kind, names in self._kinds()
            if kind.level == "refused" or (kind.level == "bad" and self.too_many)
        ]
        if self.too_many and self.share and len(self.bad) < self.rows:
            text = f"{len(self.bad)} of {self.rows} images are bad, more than bad-images = {self.share:g} allows"
            errors.append(DataError(f"{self.place}: {text}", f"{self.public}: {text}"))
        return errors

    def warnings(self) -> list[DataError]:
        """Return a warning for each other kind: images left out, and harmless oddities."""
        return [
            self._error(kind, examples(names, NAMED), len(names), kind.mend)
            if kind.level == "note"
            else self._error(kind, examples(names, NAMED), len(names), f"left out of {self.rows}, {kind.mend}")
            for kind, names in self._kinds()
            if kind.level != "refused"
        ]

    def _kinds(self) -> Iterator[tuple[Kind, list[str]]]:
        by_kind: dict[Kind, list[str]] = {}
        for kind, name, detail in self.found:
            by_kind.setdefault(kind, []).append(f"{name}: {detail}" if detail else name)
        yield from by_kind.items()

    def _error(self, kind: Kind, names: str, count: int, mend: str) -> DataError:
        return DataError(
            f"{self.place}: images {kind.wrong}: {names}; {mend}", f"{self.public}: {count} images {kind.wrong}"
        )
