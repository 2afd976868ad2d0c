"""DICOM files, read by pydicom and rendered to 8 bits as on a monitor.

Each transfer syntax has one decoder, so that results do not depend on other installed packages: pydicom's own for RLE,
Pillow for JPEG Baseline and JPEG 2000, pylibjpeg for the others. GDCM and pylibjpeg's RLE decoder are not used, because
some damaged files crash the process in them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edelweiss.datasets.image_faults import (
    CODEC,
    ENCRYPTED,
    FRAMES,
    NO_IMAGE,
    PIXELLESS,
    PYDICOM,
    UNREADABLE,
    BadImageError,
)
from edelweiss.datasets.image_file import DICOM, Header, rescale

if TYPE_CHECKING:
    from pydicom.dataset import FileDataset

Values = NDArray[np.float32]
_HEADER = [
    "SOPClassUID",
    "Rows",
    "Columns",
    "BitsStored",
    "PhotometricInterpretation",
    "NumberOfFrames",
    "EncryptedAttributesSequence",
]
_DECODERS = {
    "1.2.840.10008.1.2.5": "pydicom",  # RLE
    "1.2.840.10008.1.2.4.50": "pillow",  # JPEG Baseline
    "1.2.840.10008.1.2.4.90": "pillow",  # JPEG 2000, lossless
    "1.2.840.10008.1.2.4.91": "pillow",  # JPEG 2000
}


def header(path: Path) -> Header:
    """Read a file's header; BadImageError for one that cannot be used."""
    dataset = _read(path, stop_before_pixels=True, specific_tags=_HEADER)
    width, height = _size(dataset)
    _decoder(dataset)
    grey = str(dataset.PhotometricInterpretation).startswith("MONOCHROME")
    return Header(DICOM, int(dataset.BitsStored), width, height, grey)


def picture(path: Path) -> Image.Image:
    """Decode a file.

    Grey values go through the modality rescale or lookup table; then through the VOI lookup table, or the window (of
    several the first), whose ends become 0 and 255 [1]_. Without either, or with an invalid window width, the image's
    minimum and maximum do. An enhanced object with one frame has these in its functional groups. MONOCHROME1 is
    inverted. Padding is black and excluded from the range. Pixel spacing is ignored. Colour (RGB, YBR, palette) becomes
    RGB, with the upper 8 of more bits.

    So Hounsfield units or detector counts are reduced to the window, in 255 steps.

    Returns
    -------
    picture
        Grey in mode F, values in [0, 255]; or RGB.

    References
    ----------
    .. [1] DICOM PS3.3, C.11.1 and C.11.2.
    """
    from pydicom.pixels.processing import apply_color_lut
    from pydicom.pixels.utils import pixel_array

    dataset = _read(path)
    _size(dataset)
    if "PixelData" not in dataset:
        raise BadImageError(PIXELLESS)
    stored = pixel_array(dataset, decoding_plugin=_decoder(dataset))
    _check_rest(dataset)
    kind = str(dataset.PhotometricInterpretation)
    if kind.startswith("MONOCHROME"):
        if stored.ndim != 2:
            raise ValueError(f"{kind} with {stored.ndim} dimensions")
        return Image.fromarray(_grey(stored, dataset, inverted=kind == "MONOCHROME1"))
    if kind == "PALETTE COLOR":
        stored = apply_color_lut(stored, dataset)[..., :3]
        surplus = 8 * stored.itemsize - 8
    else:
        surplus = int(dataset.BitsStored) - 8
    if stored.ndim != 3 or stored.shape[2] != 3:
        raise ValueError(f"photometric interpretation {kind}")
    return Image.fromarray((stored >> max(0, surplus)).astype(np.uint8))


def _read(path: Path, **options: Any) -> FileDataset:
    """Read a file, or the part selected by the options.

    Scanners and archives also write data sets without preamble and file header: these are recognised by their SOP
    class, and their transfer syntax is the uncompressed one that fits.
    """
    try:
        from pydicom import dcmread
        from pydicom.config import IGNORE, settings
        from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian
    except ImportError:
        raise BadImageError(PYDICOM) from None
    settings.reading_validation_mode = IGNORE  # values are not validated
    dataset = dcmread(path, force=True, **options)
    if dataset.preamble is None and not dataset.get("SOPClassUID"):
        raise BadImageError(NO_IMAGE)
    if "TransferSyntaxUID" not in dataset.file_meta:
        dataset.file_meta.TransferSyntaxUID = (
            ImplicitVRLittleEndian if dataset.original_encoding[0] else ExplicitVRLittleEndian
        )
    for groups in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):  # of enhanced objects
        for frame in (dataset.get(groups) or ())[:1]:
            for name in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
                for item in (frame.get(name) or ())[:1]:
                    dataset.update({element.tag: element for element in item})
    return dataset


def _check_rest(dataset: FileDataset) -> None:
    """Refuse pixels in other bits than the lowest, and more than declared: truncation may remove the finding.

    The other decoders check this themselves. Trailing zeros are padding.
    """
    from pydicom.pixels.utils import get_expected_length, pixel_array
    from pydicom.uid import RLELossless

    syntax, rest = dataset.file_meta.TransferSyntaxUID, b""
    if not syntax.is_encapsulated and dataset.get("HighBit") not in (None, high := int(dataset.BitsStored) - 1):
        raise BadImageError(UNREADABLE, f"its high bit is {dataset.HighBit}, of {high + 1} bits stored")
    if not syntax.is_encapsulated:
        rest = dataset.PixelData[get_expected_length(dataset) :]
    elif syntax == RLELossless:
        dataset.Rows += 1
        with contextlib.suppress(ValueError, RuntimeError):
            rest = pixel_array(dataset, decoding_plugin=_decoder(dataset))[-1].tobytes()
        dataset.Rows -= 1
    if len(rest) > 1 and any(rest):
        raise BadImageError(UNREADABLE, f"it has more pixels than its {dataset.Columns}x{dataset.Rows}")


def _size(dataset: FileDataset) -> tuple[int, int]:
    """Return width and height of the single image in a file, within Pillow's size limit."""
    if "Rows" not in dataset or "Columns" not in dataset:
        raise BadImageError(ENCRYPTED if "EncryptedAttributesSequence" in dataset else PIXELLESS)
    if (frames := int(dataset.get("NumberOfFrames") or 1)) > 1:
        raise BadImageError(FRAMES, str(frames))
    width, height = int(dataset.Columns), int(dataset.Rows)
    if min(width, height) < 1 or (Image.MAX_IMAGE_PIXELS and width * height > 2 * Image.MAX_IMAGE_PIXELS):
        raise BadImageError(UNREADABLE, f"{width}x{height} pixels")
    return width, height


def _decoder(dataset: FileDataset) -> str:
    """Return the name of the decoder of a file's pixels; empty if they are not compressed."""
    from pydicom.pixels.decoders.base import get_decoder

    syntax = dataset.file_meta.TransferSyntaxUID
    if not syntax.is_encapsulated:
        return ""
    name = _DECODERS.get(syntax, "pylibjpeg")
    try:
        if name in get_decoder(syntax).available_plugins:
            return name
    except NotImplementedError:  # pydicom has no decoder for this syntax, such as video
        pass
    raise BadImageError(CODEC, syntax.name)


def _grey(stored: NDArray[Any], dataset: FileDataset, *, inverted: bool) -> Values:
    """Render grey values to [0, 255]."""
    padding = _padding(stored, dataset)
    values = stored.astype(np.float32)
    if table := dataset.get("ModalityLUTSequence"):
        values, _ = _looked_up(values, table[0], dataset)
    elif "RescaleSlope" in dataset:
        slope, intercept = np.float32(dataset.RescaleSlope), np.float32(dataset.get("RescaleIntercept") or 0)
        if not slope or not np.isfinite([slope, intercept]).all():
            raise BadImageError(UNREADABLE, f"its values are to be rescaled by {slope:g} and {intercept:g}")
        values = values * slope + intercept
    if table := dataset.get("VOILUTSequence"):
        values, highest = _looked_up(values, table[0], dataset)
        shown = rescale(values, 0, highest)
    elif (window := _window(dataset)) is not None:
        shown = np.float32(255) * windowed(values, *window)
    else:
        inside = values[~padding]
        shown = rescale(values, inside.min(), inside.max()) if len(inside) else np.zeros_like(values)
    shown = np.clip(255 - shown if inverted else shown, 0, 255)
    shown[padding] = 0
    return shown


def _padding(stored: NDArray[Any], dataset: FileDataset) -> NDArray[np.bool_]:
    if dataset.get("PixelPaddingValue") is None:
        return np.zeros(stored.shape, np.bool_)
    ends = [int(dataset.PixelPaddingValue)]
    if dataset.get("PixelPaddingRangeLimit") is not None:
        ends.append(int(dataset.PixelPaddingRangeLimit))
    inside: NDArray[np.bool_] = (stored >= min(ends)) & (stored <= max(ends))
    return inside


def _window(dataset: FileDataset) -> tuple[float, float, str] | None:
    """Return centre, width and function of the first window; None without a valid one."""
    function = str(dataset.get("VOILUTFunction") or "LINEAR")
    ends = []
    for name in ("WindowCenter", "WindowWidth"):
        value = dataset.get(name)
        if isinstance(value, str) or not hasattr(value, "__getitem__"):
            ends.append(value)
        else:
            ends.append(value[0] if len(value) else None)
    if None in ends or "" in ends:
        return None
    centre, width = map(float, ends)
    if not np.isfinite([centre, width]).all() or width < (1 if function == "LINEAR" else 1e-6):
        return None
    return centre, width, function


def windowed(values: Values, centre: float, width: float, function: str) -> Values:
    """Map values through a window to [0, 1]: PS3.3, C.11.2.1.2 and C.11.2.1.3."""
    if function == "SIGMOID":
        shown = 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -80, 80)))
    elif function == "LINEAR" and width == 1:
        shown = values > centre - 0.5
    elif function == "LINEAR":
        shown = np.clip((values - (centre - 0.5)) / (width - 1) + 0.5, 0, 1)
    else:
        shown = np.clip((values - centre) / width + 0.5, 0, 1)
    return np.asarray(shown, np.float32)


def _looked_up(values: Values, item: Any, dataset: FileDataset) -> tuple[Values, int]:
    """Map values through a lookup table; return the entries and their upper bound."""
    count, first, bits = (int(part) for part in item.LUTDescriptor)
    data = item.LUTData
    if isinstance(data, bytes):
        order = "<" if dataset.file_meta.TransferSyntaxUID.is_little_endian else ">"
        data = np.frombuffer(data, "u1" if len(data) == (count or 2**16) else f"{order}u2")
    entries = np.atleast_1d(np.asarray(data, np.float32))[: count or 2**16]
    place = np.clip(np.rint(values) - first, 0, len(entries) - 1)
    return entries[place.astype(np.int64)], 2**bits - 1
