"""A single image file: its header, and its pixels in 8 bits and a common form. For DICOM see `datasets.dicom`.

The content of a file decides its format, not its name.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edelweiss.common.files import reason
from edelweiss.common.schema import printable
from edelweiss.datasets.image_faults import (
    ARCHIVE,
    ENCRYPTED,
    FRAMES,
    NO_IMAGE,
    UNOPENED,
    UNREADABLE,
    VOLUME,
    BadImageError,
)
from edelweiss.datasets.source import Bytes

if TYPE_CHECKING:
    from PIL import Image

Fit = Literal["crop", "pad"]
Colour = Literal["auto", "grey", "rgb"]

DICOM = "DICOM"
_GREY = ("1", "L", "LA")
_BYTE_MODES = (*_GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
_FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".jp2": "JPEG2000",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
    ".dcm": DICOM,
    ".dicom": DICOM,
}
# A data set without the 132-byte preamble: its first element has group 2 or 8, and a value representation of two
# letters or an even length other than zero.
_BARE = re.compile(
    rb"[\x02\x08]\0..(?:AE|AS|CS|DA|DT|IS|LO|LT|OB|PN|SH|SQ|ST|TM|UI|UL|UN|US|UT|(?!\0)..\0\0)", re.DOTALL
)
_ENVELOPED = bytes.fromhex("2a864886f70d0107")  # the object identifiers of CMS, in which DICOM files are encrypted


@dataclass(frozen=True)
class ImageForm:
    """The common form of all images."""

    size: int = 0  # the side of the square images; 0: unchanged, and all images must have the same size
    # "crop": scale the shorter side to `size` and crop the centre. "pad": scale the longer side and add equal
    # black borders. Both bilinear, with antialiasing
    fit: Fit = "crop"
    # "grey": one channel, the luma (ITU-R 601) of colour images. "rgb": three channels, equal ones for grey
    # images. "auto": one if all images are grey, else three
    colour: Colour = "auto"


UNCHANGED = ImageForm()


_VOLUMES = {
    b"NRRD000": "NRRD",
    b"ObjectType": "MetaImage",
    b"NDims": "MetaImage",
    b"\x89HDF\r\n": "HDF5",
    b"\x93NUMPY": "NumPy",
}
_ARCHIVES = {b"PK\3\4": "zip", b"\x1f\x8b": "gzip", b"7z\xbc\xaf": "7z", b"Rar!": "rar"}


class Header(NamedTuple):
    """A file's header: format, bits per channel, size, and whether it is grey."""

    format: str
    bits: int
    width: int
    height: int
    grey: bool

    def as_named(self, path: Path) -> bool:
        """Whether the format agrees with the file's name."""
        named = _FORMATS.get(path.suffix.lower(), self.format)
        return named == self.format or (named, self.format) == ("JPEG", "MPO")


def header(path: Path) -> Header:
    """Read a file's header; BadImageError for one that cannot be used."""
    from PIL import Image

    try:
        if _is_dicom(path):
            from edelweiss.datasets import dicom

            return dicom.header(path)
        with Image.open(path) as image:
            if (frames := getattr(image, "n_frames", 1)) > 1 and image.format != "MPO":
                raise BadImageError(FRAMES, str(frames))
            if image.mode not in (*_BYTE_MODES, *_DEEP_MODES):
                raise BadImageError(UNREADABLE, f"mode {image.mode}")
            deep = image.mode in _DEEP_MODES
            size = image.size[::-1] if _orientation(image) > 4 else image.size
            bits = 16 if deep or ";16" in str(image.tile) else 1 if image.mode == "1" else 8
            return Header(image.format or "image", bits, *size, deep or image.mode in _GREY)
    except Exception as error:  # anything that damaged bytes raise
        raise _as_bad(error, path) from None


def pixels(path: Path, form: ImageForm, grey: bool) -> Bytes:
    """Decode a file.

    Values of more than 8 bits are rescaled to 0 to 255 and rounded once, after the image is scaled. A DICOM file
    defines the values that become 0 and 255 (see `datasets.dicom.picture`). Other 16-bit grey files hold 10 to 16 bits
    without saying how many, so their minimum and maximum are used: brightness is then not comparable between images,
    and one extreme pixel reduces the contrast of all others. Colour files of 16 bits keep the upper 8. An image is
    turned and mirrored as its Exif data say, and lies on black where it is transparent.

    Returns
    -------
    pixels
        Shape (C, H, W).

    Raises
    ------
    BadImageError
        If it cannot be decoded.
    """
    from PIL import Image, ImageOps

    try:
        if _is_dicom(path):
            from edelweiss.datasets import dicom

            picture = dicom.picture(path)
        else:
            # From a stream: of a path Pillow maps plain TIFF files, and turns them in a way that scrambles pixels.
            with path.open("rb") as stream, Image.open(stream) as opened:
                image: Image.Image = ImageOps.exif_transpose(opened) if _orientation(opened) > 1 else opened
                if image.mode in _DEEP_MODES:
                    values = np.asarray(image, np.float32)
                    picture = Image.fromarray(rescale(values, values.min(), values.max()))
                elif image.has_transparency_data:
                    image = image.convert("RGBA")
                    picture = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
                else:
                    picture = image.convert("L" if grey else "RGB")
        if picture.mode not in ("F", "L" if grey else "RGB"):
            picture = picture.convert("L" if grey else "RGB")
        fitted = np.asarray(_fitted(picture, form))
    except Exception as error:
        raise _as_bad(error, path) from None
    if fitted.dtype != np.uint8:
        fitted = np.rint(fitted).clip(0, 255).astype(np.uint8)
    if fitted.ndim == 3:
        return fitted.transpose(2, 0, 1)
    return fitted[None] if grey else np.repeat(fitted[None], 3, axis=0)


def _orientation(image: Image.Image) -> int:
    """Return how Exif data say that an image is to be turned and mirrored, 1 to 8; Pillow turns TIFF files itself."""
    png = image.format == "PNG" and not {"exif", "Raw profile type exif"} & {*image.info}
    found = 1 if png or image.format == "TIFF" else image.getexif().get(0x112)  # of a PNG without, it decodes all
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def rescale(values: NDArray[np.float32], low: float, high: float) -> NDArray[np.float32]:
    """Map low to 0 and high to 255; all is black if they are equal."""
    if not np.isfinite([low, high]).all():
        raise ValueError("it holds values that are not finite")
    return (values - np.float32(low)) * np.float32(255.0 / (high - low) if high > low else 0)


def _fitted(picture: Image.Image, form: ImageForm) -> Image.Image:
    from PIL import Image, ImageOps

    if not form.size:
        return picture
    square, bilinear = (form.size, form.size), Image.Resampling.BILINEAR
    if form.fit == "crop":
        return ImageOps.fit(picture, square, bilinear)
    scale = form.size / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    canvas = Image.new(picture.mode, square)
    canvas.paste(picture.resize((width, height), bilinear), ((form.size - width) // 2, (form.size - height) // 2))
    return canvas


def _is_dicom(path: Path) -> bool:
    """Whether a file looks like DICOM, with or without a preamble."""
    with path.open("rb") as file:
        start = file.read(132)
    return start[128:] == b"DICM" or bool(_BARE.match(start))


def _no_picture(start: bytes) -> BadImageError | None:
    """Return the fault of a volume, an array or an archive; None for anything else."""
    unpacked = b""
    if start.startswith(b"\x1f\x8b"):
        with contextlib.suppress(zlib.error):
            unpacked = zlib.decompressobj(31).decompress(start)
    for data in (start, unpacked):
        if data[344:348] in (b"n+1\0", b"ni1\0") or data[4:8] in (b"n+2\0", b"ni2\0"):
            return BadImageError(VOLUME, "NIfTI")
        for mark, name in _VOLUMES.items():
            if data.startswith(mark):
                return BadImageError(VOLUME, name)
    named = next((name for mark, name in _ARCHIVES.items() if start.startswith(mark)), "")
    named = "tar" if start[257:262] == b"ustar" else named
    return BadImageError(ARCHIVE, named) if named else None


def _as_bad(error: Exception, path: Path) -> BadImageError:
    """Convert a reading error to a fault, without the file's path."""
    from PIL import UnidentifiedImageError

    if isinstance(error, BadImageError):
        return error
    if isinstance(error, MemoryError) or getattr(error, "errno", None):
        return BadImageError(UNOPENED, reason(error))
    with path.open("rb") as file:
        start = file.read(1024)
    if other := _no_picture(start):
        return other
    if isinstance(error, UnidentifiedImageError):
        from edelweiss.datasets.site.formats import looks_like  # whose package needs this one

        if start[:1] == b"\x30" and _ENVELOPED in start[:64]:
            return BadImageError(ENCRYPTED)
        return BadImageError(NO_IMAGE, "an empty file" if not path.stat().st_size else looks_like(start))
    return BadImageError(UNREADABLE, printable(reason(error), 200))
