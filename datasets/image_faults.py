"""What is wrong with image files: by kind, which say whether a site may go on without such a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from edelweiss.datasets.errors import DataError, examples

NAMED = 50  # images that are left out and named; of those that are refused a few are enough


class Kind(NamedTuple):
    """What is wrong with images, and how to mend it.

    ``bad`` is the fault of the file itself, and its row may be left out up to a share. ``refused`` never is. A ``note``
    does no harm.
    """

    wrong: str
    mend: str
    level: Literal["bad", "refused", "note"] = "bad"


MISSING = Kind("are missing", "put them there or remove their lines")
LOOP = Kind("are links that lead in a circle", "mend the links or remove the lines")
UNOPENED = Kind("cannot be opened", "let this site read them")
UNREADABLE = Kind("cannot be read", "replace them or leave them out")
NO_IMAGE = Kind("are no images", "replace them or leave them out")
FRAMES = Kind("hold several frames", "write a file for each frame that is to be used, or leave them out")
PIXELLESS = Kind("are DICOM files without pixels", "leave out reports, plans and the like")
ENCRYPTED = Kind("are encrypted", "export them without encryption")
CODEC = Kind(
    "are DICOM files of a transfer syntax that nothing installed here reads",
    "pip install -c constraints.txt '.[dicom-jpeg]' for JPEG Lossless, JPEG-LS and JPEG of 12 bits; or decompress them",
)
PYDICOM = Kind("are DICOM files, which take pydicom", "pip install -c constraints.txt '.[dicom]'", "refused")
OTHER_SIZE = Kind("have another size than most", "set image-size, to which all images are then brought", "refused")
OUTSIDE = Kind("lie outside the folder", "put copies of them into it", "refused")
LINKED = Kind(
    "are links to files outside the folder",
    "put copies of the files into the folder or, at a site whose own links these are, set its key follow-links = true",
    "refused",
)
TWICE = Kind(
    "are listed more than once",
    "leave one line of each; lines of one path that agree on the label, the patient and the view are read as one",
    "refused",
)
TWIN = Kind(
    "show exactly what another one shows",
    "leave one of them, or see that the labels agree and that they are of one patient",
    "note",
)
MISNAMED = Kind("are of another kind than their names say, and read as what they are", "rename them", "note")

PASSING = (UNOPENED, CODEC)  # which may be mended without a change of the file


class BadImageError(ValueError):
    """An image file that cannot be used: which kind of fault it has, and more of it in words."""

    def __init__(self, kind: Kind, detail: str = "") -> None:
        super().__init__(detail or kind.wrong)
        self.kind, self.detail = kind, detail


class Faults:
    """What is wrong with images, by kind.

    Parameters
    ----------
    place, public
        The file or folder that names the images, for the site's own log and for everybody else.
    share
        In [0, 1). Bad images are left out as long as they are not more than this share.
    rows
        Of how many.
    """

    def __init__(self, place: Path, public: str, share: float = 0.0, rows: int = 0) -> None:
        self.place, self.public, self.share, self.rows = place, public, share, rows
        self.found: list[tuple[Kind, str, str]] = []  # what is wrong, with which image, and more of it in words

    def add(self, kind: Kind, name: str, detail: str = "") -> None:
        """Note an image."""
        self.found.append((kind, name, detail))

    @property
    def bad(self) -> set[str]:
        """Names of images that cannot be used, and may be left out."""
        return {name for kind, name, _ in self.found if kind.level == "bad"}

    @property
    def too_many(self) -> bool:
        """Whether more are bad than may be left out."""
        return bool(self.bad) and (not self.rows or len(self.bad) / self.rows > self.share)

    def errors(self) -> list[DataError]:
        """Return an error for each kind that stands in the way, which names the first few images."""
        errors = [
            self._error(kind, examples(names), len(names), kind.mend)
            for kind, names in self._kinds()
            if kind.level == "refused" or (kind.level == "bad" and self.too_many)
        ]
        if self.too_many and self.share:
            text = f"{len(self.bad)} of {self.rows} images are bad, and bad-images = {self.share:g} allows fewer"
            errors.append(DataError(f"{self.place}: {text}", f"{self.public}: {text}"))
        return errors

    def doubts(self) -> list[DataError]:
        """Return what the site goes on with: the images that are left out, and what is merely odd."""
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
