"""An image is seen as a viewer shows it, by other code than ours; what a viewer pages through is refused by name."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image, ImageOps
from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut, convert_color_space

from edelweiss.config import ConfigError, SiteConfig
from edelweiss.datasets import DataError
from edelweiss.datasets.image_faults import (
    ADDRESS,
    ARCHIVE,
    FOLDER,
    FRAMES,
    UNREADABLE,
    VOLUME,
    BadImageError,
    Faults,
    Kind,
)
from edelweiss.datasets.image_file import ImageForm, header, pixels
from edelweiss.datasets.images import read_images
from edelweiss.datasets.site import read_site
from tests.datasets.dicoms import dataset, lookup, ramp, write
from tests.said import has

AS_IS = ImageForm()
COLOURS = np.random.default_rng(0).integers(0, 256, (6, 10, 3)).astype(np.uint8)


def rgb(file: Path) -> np.ndarray:
    return pixels(file, AS_IS, grey=False).transpose(1, 2, 0).astype(int)


def grey(file: Path) -> np.ndarray:
    return pixels(file, AS_IS, grey=True)[0].astype(int)


def fault(file: Path) -> tuple[Kind, str]:
    try:
        header(file)
        pixels(file, AS_IS, grey=True)
    except BadImageError as error:
        return error.kind, error.detail
    raise AssertionError("it was read")


# ---------------------------------------------------------------------- Exif


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("suffix", "deep"),
    [("png", False), ("jpg", False), ("tiff", False), ("webp", False), ("png", True), ("tiff", True)],
)
def test_an_image_is_turned_as_exif_says(tmp_path: Path, orientation: int, suffix: str, deep: bool) -> None:
    picture = Image.fromarray(ramp((6, 10), high=65535).astype(np.uint16)) if deep else Image.fromarray(COLOURS)
    tags = Image.Exif()
    tags[0x112] = orientation
    picture.save(file := tmp_path / f"x.{suffix}", exif=tags)
    picture.save(plain := tmp_path / f"plain.{suffix}")
    with Image.open(plain) as upright:
        upright.getexif()[0x112] = orientation
        expected = np.asarray(ImageOps.exif_transpose(upright)).astype(float)
    found = header(file)
    assert (found.height, found.width) == expected.shape[:2]
    if deep:
        low, high = expected.min(), expected.max()
        assert np.abs(grey(file) - (expected - low) / (high - low) * 255).max() <= 0.51
    else:
        assert np.array_equal(rgb(file), expected)


def test_images_that_were_held_differently_have_one_shape(tmp_path: Path) -> None:
    """As the check of all headers sees them, before anything is decoded."""
    files = {}
    for orientation in (1, 6):
        tags = Image.Exif()
        tags[0x112] = orientation
        picture = Image.fromarray(COLOURS if orientation == 1 else np.rot90(COLOURS).copy())
        picture.save(place := tmp_path / f"{orientation}.png", exif=tags)
        files[place.name] = place
    problems: list[DataError] = []
    found = read_images(files, AS_IS, Faults(tmp_path, "x"), problems)
    assert not problems
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("value", [0, 9, 77])
def test_an_orientation_that_is_none_changes_nothing(tmp_path: Path, value: int) -> None:
    tags = Image.Exif()
    tags[0x112] = value
    Image.fromarray(COLOURS).save(tmp_path / "x.png", exif=tags)
    assert np.array_equal(rgb(tmp_path / "x.png"), COLOURS)


def test_exif_data_after_the_pixels_of_a_png_are_ignored(tmp_path: Path) -> None:
    """Header and pixels have to agree on the size, and the header is read without the pixels."""
    Image.fromarray(COLOURS).save(file := tmp_path / "x.png")
    tags = Image.Exif()
    tags[0x112] = 6
    Image.fromarray(COLOURS).save(other := tmp_path / "y.png", exif=tags)
    content = other.read_bytes()
    at = content.index(b"eXIf") - 4
    chunk = content[at : at + 12 + struct.unpack(">I", content[at : at + 4])[0]]
    plain = file.read_bytes()
    end = plain.index(b"IEND") - 4
    file.write_bytes(plain[:end] + chunk + plain[end:])
    assert (header(file).width, header(file).height) == (10, 6)
    assert np.array_equal(rgb(file), COLOURS)


# ---------------------------------------------------------------------- palettes, transparency, ink


@pytest.mark.parametrize("suffix", ["png", "gif", "bmp", "tiff"])
def test_a_palette_is_looked_up(tmp_path: Path, suffix: str) -> None:
    places = np.random.default_rng(1).integers(0, 16, (6, 10)).astype(np.uint8)
    entries = np.random.default_rng(2).integers(0, 256, (16, 3)).astype(np.uint8)
    picture = Image.fromarray(places, "P")
    picture.putpalette(entries.tobytes())
    picture.save(file := tmp_path / f"x.{suffix}")
    assert np.array_equal(rgb(file), entries[places])
    assert not header(file).grey


@pytest.mark.parametrize("suffix", ["png", "webp", "tiff"])
def test_what_is_transparent_lies_on_black(tmp_path: Path, suffix: str) -> None:
    opaque = np.random.default_rng(3).integers(0, 256, (6, 10, 1))
    opaque[0], opaque[1] = 0, 255
    picture = Image.fromarray(np.concatenate([COLOURS, opaque], axis=2).astype(np.uint8))
    options = {"lossless": True, "exact": True} if suffix == "webp" else {}
    picture.save(file := tmp_path / f"x.{suffix}", **options)
    assert np.abs(rgb(file) - COLOURS * (opaque / 255)).max() <= 1
    assert not rgb(file)[0].any(), "nothing is seen that a viewer hides"


def test_grey_with_an_opacity_stays_grey(tmp_path: Path) -> None:
    values, opaque = np.random.default_rng(4).integers(0, 256, (2, 6, 10))
    Image.fromarray(np.stack([values, opaque], 2).astype(np.uint8), "LA").save(file := tmp_path / "x.png")
    assert header(file).grey
    assert np.abs(grey(file) - values * (opaque / 255)).max() <= 1


@pytest.mark.parametrize("mode", ["L", "P", "RGB"])
def test_a_colour_that_means_transparent_is_black(tmp_path: Path, mode: str) -> None:
    picture = Image.fromarray(COLOURS).convert(mode)
    key: Any = picture.getpixel((3, 2))
    picture.save(file := tmp_path / "x.png", transparency=key)
    expected = np.asarray(picture.convert("RGB")).copy()
    values = np.asarray(picture)
    expected[(values == key).all(2) if values.ndim == 3 else values == key] = 0
    assert np.array_equal(rgb(file), expected)
    assert not expected[2, 3].any()


@pytest.mark.parametrize("suffix", ["tiff", "jpg"])
def test_ink_becomes_light(tmp_path: Path, suffix: str) -> None:
    ink = np.zeros((16, 16, 4))
    ink[:8, :8, 0], ink[:8, 8:, 1], ink[8:, :8, 2], ink[8:, 8:, 3] = 200, 150, 255, 100
    Image.fromarray(ink.astype(np.uint8), "CMYK").save(file := tmp_path / f"x.{suffix}")
    expected = (255 - ink[..., :3]) * (255 - ink[..., 3:]) / 255
    assert np.abs(rgb(file) - expected).max() <= (1 if suffix == "tiff" else 8)


# ---------------------------------------------------------------------- DICOM, by pydicom's own pipeline


def shown_by_pydicom(made: pydicom.Dataset, low: float, high: float) -> np.ndarray:
    """Modality, then VOI table or window, from low and high to 0 and 255."""
    values = apply_voi_lut(apply_modality_lut(made.pixel_array, made), made, prefer_lut=True)
    return np.rint(np.clip((values - low) / (high - low), 0, 1) * 255)


@pytest.mark.parametrize("slope", [1, 2.5])
@pytest.mark.parametrize("first", [-3, 0, 700])
def test_a_voi_table_after_a_rescale(tmp_path: Path, slope: float, first: int) -> None:
    entries = [int(value) for value in np.linspace(0, 1023, 300) ** 1.02 // 1.16]
    tags = {"RescaleSlope": slope, "RescaleIntercept": -40, "VOILUTSequence": lookup(entries, first, 10)}
    made = dataset(ramp(high=900), 12, **tags)
    file = write(tmp_path / "x.dcm", made)
    assert np.abs(grey(file) - shown_by_pydicom(made, 0, 1023)).max() <= 1


def test_a_modality_table_before_a_window(tmp_path: Path) -> None:
    entries = [int(value) for value in np.linspace(4000, 0, 500)]
    tags = {"ModalityLUTSequence": lookup(entries, 100, 12), "WindowCenter": 1500, "WindowWidth": 900}
    made = dataset(ramp(high=700), 12, **tags)
    made.ModalityLUTSequence[0].ModalityLUTType = "US"
    file = write(tmp_path / "x.dcm", made)
    values = np.array(entries)[np.clip(made.pixel_array.astype(int) - 100, 0, 499)]
    expected = np.clip((values - 1499.5) / 899 + 0.5, 0, 1) * 255
    assert np.abs(grey(file) - expected).max() <= 1


@pytest.mark.parametrize(("bits", "low"), [(10, 0), (12, 0), (12, -2048), (16, -32768)])
def test_bits_above_those_stored_are_no_part_of_a_value(tmp_path: Path, bits: int, low: int) -> None:
    """Old archives kept overlays there."""
    values = ramp(low=low, high=low + 2**bits - 1)
    plain = grey(write(tmp_path / "x.dcm", dataset(values, bits, SmallestImagePixelValue=0)))
    made = dataset(values, bits)
    raw = np.frombuffer(made.PixelData, "<u2") & (2**bits - 1)
    raw[::3] |= 0xFFFF ^ (2**bits - 1)
    made.PixelData = raw.astype("<u2").tobytes()
    assert np.array_equal(grey(write(tmp_path / "y.dcm", made)), plain)
    assert np.abs(plain - (values - low) / (2**bits - 1) * 255).max() <= 1


def test_values_in_the_upper_bits_are_refused(tmp_path: Path) -> None:
    made = dataset(ramp(), 12)
    made.PixelData = (np.frombuffer(made.PixelData, "<u2") << 4).astype("<u2").tobytes()
    made.HighBit = 15
    kind, detail = fault(write(tmp_path / "x.dcm", made))
    assert kind == UNREADABLE
    assert "high bit is 15" in detail


@pytest.mark.parametrize("planar", [0, 1])
@pytest.mark.parametrize("photometric", ["RGB", "YBR_FULL"])
def test_colours_are_those_of_pydicom(tmp_path: Path, photometric: str, planar: int) -> None:
    made = dataset(COLOURS.astype(int), 8, photometric)
    made.PlanarConfiguration = planar
    if planar:
        made.PixelData = COLOURS.transpose(2, 0, 1).tobytes()
    expected = COLOURS if photometric == "RGB" else convert_color_space(COLOURS, photometric, "RGB")
    assert np.abs(rgb(write(tmp_path / "x.dcm", made)) - expected).max() <= 1


@pytest.mark.parametrize("where", ["Shared", "PerFrame"])
def test_an_enhanced_object_of_one_frame_has_its_window_in_its_groups(tmp_path: Path, where: str) -> None:
    tags = {"RescaleSlope": 2, "RescaleIntercept": -1000, "WindowCenter": 40, "WindowWidth": 400}
    plain = grey(write(tmp_path / "x.dcm", dataset(ramp(), 12, **tags)))
    made = dataset(ramp(), 12, NumberOfFrames=1)
    group = pydicom.Dataset()
    for name, keys in (
        ("PixelValueTransformation", ("RescaleSlope", "RescaleIntercept")),
        ("FrameVOILUT", ("WindowCenter", "WindowWidth")),
    ):
        item = pydicom.Dataset()
        for key in keys:
            setattr(item, key, tags[key])
        setattr(group, f"{name}Sequence", [item])
    setattr(made, f"{where}FunctionalGroupsSequence", [group])
    assert np.array_equal(grey(write(tmp_path / "y.dcm", made)), plain)
    assert 5 < np.count_nonzero((plain > 0) & (plain < 255)) < 100, "as a window of these values leaves few"


# ---------------------------------------------------------------------- what is more than a picture


def nifti(second: bool = False) -> bytes:
    if second:
        return struct.pack("<i", 540) + b"n+2\0\r\n\x1a\n" + bytes(600)
    return struct.pack("<i", 348) + bytes(340) + b"n+1\0" + bytes(600)


def zipped() -> bytes:
    with zipfile.ZipFile(stream := io.BytesIO(), "w") as archive:
        archive.writestr("x.dcm", b"1")
    return stream.getvalue()


def tarred() -> bytes:
    with tarfile.open(fileobj=(stream := io.BytesIO()), mode="w") as archive:
        archive.addfile(tarfile.TarInfo("x.dcm"))
    return stream.getvalue()


OTHERS: dict[str, tuple[Callable[[], bytes], Kind, str]] = {
    "x.nii": (nifti, VOLUME, "NIfTI"),
    "x.nii.gz": (lambda: gzip.compress(nifti()), VOLUME, "NIfTI"),
    "two.nii.gz": (lambda: gzip.compress(nifti(second=True)), VOLUME, "NIfTI"),
    "named.png": (nifti, VOLUME, "NIfTI"),
    "x.nrrd": (lambda: b"NRRD0004\ntype: short\ndimension: 3\n", VOLUME, "NRRD"),
    "x.mha": (lambda: b"ObjectType = Image\nNDims = 3\n" + bytes(99), VOLUME, "MetaImage"),
    "x.h5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(99), VOLUME, "HDF5"),
    "x.npy": (lambda: b"\x93NUMPY\1\0" + bytes(99), VOLUME, "NumPy"),
    "x.zip": (zipped, ARCHIVE, "zip"),
    "x.png.gz": (lambda: gzip.compress(b"\x89PNG"), ARCHIVE, "gzip"),
    "x.tar": (tarred, ARCHIVE, "tar"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_volumes_and_archives_are_refused_by_name(tmp_path: Path, name: str) -> None:
    make, kind, said = OTHERS[name]
    (tmp_path / name).write_bytes(make())
    assert fault(tmp_path / name) == (kind, said)


@pytest.mark.parametrize("suffix", ["gif", "tiff", "webp", "png", "dcm"])
def test_no_first_frame_is_taken_for_all(tmp_path: Path, suffix: str) -> None:
    pages = [Image.fromarray(np.roll(COLOURS, place, 0)) for place in range(3)]
    file = tmp_path / f"x.{suffix}"
    if suffix == "dcm":
        made = dataset(ramp(), 12)
        made.NumberOfFrames, made.PixelData = 3, made.PixelData * 3
        write(file, made)
    else:
        pages[0].save(file, save_all=True, append_images=pages[1:])
    assert fault(file) == (FRAMES, "3")


def test_addresses_and_folders_in_a_list_are_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "series").mkdir()
    address = "https://pacs.example.org/dicom-web/studies/1.2"
    (tmp_path / "labels.csv").write_text(f"path,label\nseries,0\n{address},1\n")
    with pytest.raises(DataError) as told:
        read_site(str(tmp_path), "label", True)
    for kind in (ADDRESS, FOLDER):
        assert f"images {kind.wrong}" in str(told.value)
        assert kind.mend in str(told.value)
    assert "pacs.example.org" not in told.value.public


def test_a_data_folder_is_no_address() -> None:
    with pytest.raises(ConfigError, check=has("DICOMweb", keys=["data-dir"])):
        SiteConfig.parse({"data-dir": "https://pacs.example.org/dicom-web"})
