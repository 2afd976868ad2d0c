"""One image file: its header, and its pixels as 8 bits in the form that a run wants. DICOM: see `datasets.dicom`.

What a file is is decided by its content, whatever its name says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from edelweiss.common.files import reason
from edelweiss.common.schema import printable
from edelweiss.datasets.image_faults import ENCRYPTED, FRAMES, NO_IMAGE, UNOPENED, UNREADABLE, BadImageError
from edelweiss.datasets.source import Bytes

if TYPE_CHECKING:
    from PIL import Image

Fit = Literal["crop", "pad"]
Colour = Literal["auto", "grey", "rgb"]
FITS: tuple[str, ...] = get_args(Fit)
COLOURS: tuple[str, ...] = get_args(Colour)

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
# A data set without the 132 bytes before it: its first element is of group 2 or 8, with the kind of its value in two
# letters, or with an even length that is not zero.
_BARE = re.compile(
    rb"[\x02\x08]\0..(?:AE|AS|CS|DA|DT|IS|LO|LT|OB|PN|SH|SQ|ST|TM|UI|UL|UN|US|UT|(?!\0)..\0\0)", re.DOTALL
)
_ENVELOPED = bytes.fromhex("2a864886f70d0107")  # the object identifiers of CMS, in which DICOM files are encrypted


@dataclass(frozen=True)
class ImageForm:
    """What all images are brought to.

    Attributes
    ----------
    size : int
        The side of the squares; 0: the images, which then must have one size, stay as they are.
    fit : str
        ``"crop"``: an image is scaled until its shorter side is `size`, and its middle is kept. ``"pad"``: until its
        longer side is, with black borders of equal width. Both bilinear, with antialiasing.
    colour : str
        ``"grey"``: one channel, of colour images their luma (ITU-R 601). ``"rgb"``: three, of grey images three equal
        ones. ``"auto"``: one if all images are grey, else three.
    """

    size: int = 0
    fit: Fit = "crop"
    colour: Colour = "auto"


AS_THEY_ARE = ImageForm()


class Header(NamedTuple):
    """What a file's header says: what it is, bits of a channel, and whether it is grey."""

    format: str
    bits: int
    width: int
    height: int
    grey: bool

    def as_named(self, path: Path) -> bool:
        """Whether the file's name says no other format."""
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
            bits = 16 if deep or ";16" in str(image.tile) else 1 if image.mode == "1" else 8
            return Header(image.format or "image", bits, *image.size, deep or image.mode in _GREY)
    except Exception as error:  # whatever damaged bytes lead to
        raise _as_bad(error, path) from None


def pixels(path: Path, form: ImageForm, grey: bool) -> Bytes:
    """Decode a file.

    Values of more than 8 bits are stretched to 0 to 255, kept as fractions while the image is scaled, and rounded once,
    at the end. Which of them become 0 and 255 a DICOM file says (see `datasets.dicom.picture`). Other grey files of 16
    bits hold 10 to 16 bits and do not say how many: it is their own least and largest value. So brightness cannot be
    compared between such images, a single extreme pixel takes contrast from all others, and of finer steps than 1/255
    of the range nothing is left. Of colour files of 16 bits the upper 8 are taken.

    Returns
    -------
    pixels
        Shape (C, H, W).

    Raises
    ------
    BadImageError
        When it cannot be decoded.
    """
    from PIL import Image

    try:
        if _is_dicom(path):
            from edelweiss.datasets import dicom

            picture = dicom.picture(path)
        else:
            with Image.open(path) as image:
                if image.mode in _DEEP_MODES:
                    values = np.asarray(image, np.float32)
                    picture = Image.fromarray(stretched(values, values.min(), values.max()))
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


def stretched(values: NDArray[np.float32], low: float, high: float) -> NDArray[np.float32]:
    """Map low to 0 and high to 255; all is black where they are equal."""
    if not np.isfinite([low, high]).all():
        raise ValueError("it holds values that are no finite numbers")
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
    """Whether a file is DICOM, or begins as one without a preamble does; reading it decides."""
    with path.open("rb") as file:
        start = file.read(132)
    return start[128:] == b"DICM" or bool(_BARE.match(start))


def _as_bad(error: Exception, path: Path) -> BadImageError:
    """Say which fault an error in reading stands for, without the file's path."""
    from PIL import UnidentifiedImageError

    if isinstance(error, BadImageError):
        return error
    if isinstance(error, MemoryError) or getattr(error, "errno", None):
        return BadImageError(UNOPENED, reason(error))
    if isinstance(error, UnidentifiedImageError):
        from edelweiss.datasets.site.table import looks_like  # whose package needs this one

        start = path.read_bytes()[:1024] if path.stat().st_size < 2**20 else b""
        if start[:1] == b"\x30" and _ENVELOPED in start[:64]:
            return BadImageError(ENCRYPTED)
        return BadImageError(NO_IMAGE, "an empty file" if not path.stat().st_size else looks_like(start))
    return BadImageError(UNREADABLE, printable(reason(error), 200))


def as_form(size: int, fit: str, colour: str) -> ImageForm:
    """Return a form of words that were checked."""
    return ImageForm(size, cast("Fit", fit), cast("Colour", colour))
