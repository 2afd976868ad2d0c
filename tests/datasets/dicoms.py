"""DICOM files of our own making, and those that come with pydicom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, generate_uid

SHIPPED = Path(pydicom.__file__).parent / "data" / "test_files"
BITS = "OW"


def ramp(shape: tuple[int, int] = (16, 20), low: int = 0, high: int = 4095) -> np.ndarray:
    """Every value from low to high, about, in rows."""
    return np.linspace(low, high, shape[0] * shape[1]).round().astype(np.int64).reshape(shape)


def dataset(pixels: np.ndarray, bits: int = 12, photometric: str = "MONOCHROME2", **tags: Any) -> FileDataset:
    """Describe grey (H, W) or colour (H, W, 3) pixels; signed where a value is below zero."""
    made = FileDataset("", {}, file_meta=FileMetaDataset(), preamble=b"\0" * 128)
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = UID("1.2.840.10008.5.1.4.1.1.7")
    made.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    signed, allocated = bool(pixels.min() < 0), 8 if bits <= 8 else 16
    made.Rows, made.Columns = pixels.shape[:2]
    made.SamplesPerPixel = 3 if pixels.ndim == 3 else 1
    if pixels.ndim == 3:
        made.PlanarConfiguration = 0
    made.PhotometricInterpretation = photometric
    made.BitsAllocated, made.BitsStored, made.HighBit = allocated, bits, bits - 1
    made.PixelRepresentation = int(signed)
    made.PixelData = pixels.astype(f"<{'i' if signed else 'u'}{allocated // 8}").tobytes()
    made["PixelData"].VR = BITS if allocated == 16 else "OB"
    for name, value in tags.items():
        setattr(made, name, value)
    return made


def write(file: Path, made: FileDataset) -> Path:
    """Write a file of the transfer syntax that the dataset names."""
    made.save_as(file, enforce_file_format=True)
    return file


def lookup(entries: list[int], first: int, bits: int) -> pydicom.Sequence:
    """A VOI or modality lookup table."""
    item = pydicom.Dataset()
    item.add_new("LUTDescriptor", "SS" if first < 0 else "US", [len(entries), first, bits])
    item.add_new("LUTData", "OW", np.array(entries, "<u2").tobytes())
    return pydicom.Sequence([item])
