"""DICOM: what a monitor would show, whatever the bits, the sign, the window and the compression."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pydicom
import pytest
from hypothesis import HealthCheck, given, settings
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.pixels.processing import apply_modality_lut, apply_windowing
from pydicom.uid import (
    JPEG2000,
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    RLELossless,
)

from edelweiss.datasets.image_faults import (
    CODEC,
    ENCRYPTED,
    FRAMES,
    NO_IMAGE,
    PIXELLESS,
    PYDICOM,
    UNREADABLE,
    BadImageError,
    Kind,
)
from edelweiss.datasets.image_file import ImageForm, header, pixels
from tests.datasets.dicoms import BITS, SHIPPED, dataset, lookup, ramp, write

AS_IS = ImageForm()


def grey(file: Path) -> np.ndarray:
    return pixels(file, AS_IS, grey=True)[0].astype(int)


def shown(
    folder: Path, values: np.ndarray, bits: int = 12, photometric: str = "MONOCHROME2", **tags: Any
) -> np.ndarray:
    return grey(write(folder / "x.dcm", dataset(values, bits, photometric, **tags)))


def rescale(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint(np.clip((values - low) / (high - low), 0, 1) * 255).astype(int)


def fault(file: Path) -> Kind:
    try:
        header(file)
        pixels(file, AS_IS, grey=True)
    except BadImageError as error:
        return error.kind
    raise AssertionError("it was read")


@pytest.mark.parametrize(
    ("bits", "low", "high"),
    [(8, 3, 200), (10, 0, 1023), (12, -2048, 2047), (14, 9, 16000), (16, 0, 65535), (16, -32768, 9)],
)
def test_without_a_window_the_images_own_range_is_shown(tmp_path: Path, bits: int, low: int, high: int) -> None:
    values = ramp(low=low, high=high)
    assert np.abs(shown(tmp_path, values, bits) - rescale(values, low, high)).max() <= 1
    found = header(tmp_path / "x.dcm")
    assert (found.format, found.bits, found.width, found.height, found.grey) == ("DICOM", bits, 20, 16, True)


def test_monochrome1_is_its_twin_turned_about(tmp_path: Path) -> None:
    values = ramp()
    assert np.array_equal(shown(tmp_path, 4095 - values, 12, "MONOCHROME1"), shown(tmp_path, values))
    twin = shown(tmp_path, values, WindowCenter=2000, WindowWidth=1001)
    turned = shown(tmp_path, values, 12, "MONOCHROME1", WindowCenter=2000, WindowWidth=1001)
    assert np.abs(turned - (255 - twin)).max() <= 1
    assert twin[0, 0] == 0
    assert turned[0, 0] == 255


@pytest.mark.parametrize("function", ["", "LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize(("centre", "width"), [(100, 600), (-300.5, 1500), (50, 1), (51, 4), (9000, 10)])
def test_windows_are_those_of_the_standard(
    tmp_path: Path, function: str, rescaled: bool, centre: float, width: float
) -> None:
    tags: dict[str, Any] = {"WindowCenter": [centre, 7], "WindowWidth": [width, 7]}
    tags |= {"VOILUTFunction": function} if function else {}
    tags |= {"RescaleSlope": 0.5, "RescaleIntercept": -300} if rescaled else {}
    made = dataset(ramp(low=-1000, high=2000), 12, **tags)
    file = write(tmp_path / "x.dcm", made)
    values = apply_modality_lut(made.pixel_array, made)
    ends = (-2048 * 0.5 - 300, 2047 * 0.5 - 300) if rescaled else (-2048, 2047)
    assert np.abs(grey(file) - rescale(apply_windowing(values, made), *ends)).max() <= 1


@pytest.mark.parametrize("width", [0, 0.5, -3, None])
def test_a_window_that_is_none_leaves_the_range(tmp_path: Path, width: float | None) -> None:
    values = ramp(high=999)
    tags = {"WindowCenter": 5} | ({} if width is None else {"WindowWidth": width})
    assert np.array_equal(shown(tmp_path, values, **tags), shown(tmp_path, values))


def test_lookup_tables_are_looked_up_and_count_more_than_windows(tmp_path: Path) -> None:
    values = ramp(low=-5, high=14)
    entries = [0, 100, 400, 1023]
    expected = np.rint(np.array(entries)[np.clip(values - 2, 0, 3)] / 1023 * 255)
    found = shown(tmp_path, values, VOILUTSequence=lookup(entries, 2, 10), WindowCenter=3, WindowWidth=2)
    assert np.array_equal(found, expected)
    modal = shown(tmp_path, values, ModalityLUTSequence=lookup(entries, 2, 12), WindowCenter=400.5, WindowWidth=801)
    assert np.array_equal(modal, rescale(np.array(entries)[np.clip(values - 2, 0, 3)], 0, 800))


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_padding_is_black_and_has_no_part_in_the_range(tmp_path: Path, photometric: str) -> None:
    values = ramp(low=100, high=1100)
    inside = shown(tmp_path, values, 16, photometric)
    padded = values.copy()
    padded[3:6], padded[6] = -2000, -1900
    found = shown(tmp_path, padded, 16, photometric, PixelPaddingValue=-2000, PixelPaddingRangeLimit=-1900)
    assert not found[3:7].any()
    assert np.array_equal(np.delete(found, range(3, 7), axis=0), np.delete(inside, range(3, 7), axis=0))


# ---------------------------------------------------------------------- transfer syntaxes


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, DeflatedExplicitVRLittleEndian, RLELossless])
@pytest.mark.parametrize("low", [0, -700])
def test_a_lossless_syntax_changes_nothing(tmp_path: Path, syntax: UID, low: int) -> None:
    values = ramp(low=low, high=3000)
    made = dataset(values, 16)
    if syntax.is_encapsulated:
        made.compress(syntax, generate_instance_uid=False)
    made.file_meta.TransferSyntaxUID = syntax
    assert np.array_equal(grey(write(tmp_path / "y.dcm", made)), shown(tmp_path, values, 16))


@pytest.mark.parametrize(("syntax", "options"), [(JPEG2000Lossless, {}), (JPEG2000, {"irreversible": False})])
def test_jpeg_2000_of_16_bits(tmp_path: Path, syntax: UID, options: dict[str, Any]) -> None:
    values = ramp((64, 64), high=65535)
    Image.fromarray(values.astype(np.uint16)).save(tmp_path / "x.j2k", "JPEG2000", no_jp2=True, **options)
    made = dataset(values, 16)
    made.file_meta.TransferSyntaxUID = syntax
    made.PixelData = encapsulate([(tmp_path / "x.j2k").read_bytes()])
    made["PixelData"].is_undefined_length = True
    assert np.array_equal(grey(write(tmp_path / "y.dcm", made)), shown(tmp_path, values, 16))


def test_jpeg_of_8_bits(tmp_path: Path) -> None:
    Image.fromarray(ramp(high=255).astype(np.uint8)).save(tmp_path / "x.jpg", quality=100)
    made = dataset(ramp(high=255), 8)
    made.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    made.PixelData = encapsulate([(tmp_path / "x.jpg").read_bytes()])
    made["PixelData"].is_undefined_length = True
    assert np.abs(grey(write(tmp_path / "y.dcm", made)) - shown(tmp_path, ramp(high=255), 8)).max() <= 3


TWINS = [
    "MR_small_RLE",
    "MR_small_bigendian",
    "MR_small_expb",
    "MR_small_implicit",
    "MR_small_jp2klossless",
    "MR_small_jpeg_ls_lossless",
    "MR_small_padded",
]


@pytest.mark.parametrize("name", TWINS)
def test_one_image_in_all_syntaxes_has_the_same_pixels(name: str) -> None:
    assert np.array_equal(grey(SHIPPED / f"{name}.dcm"), grey(SHIPPED / "MR_small.dcm"))


BARS = [
    "SC_rgb_dcmtk_+eb+cr",
    "SC_rgb_dcmtk_+eb+cy+n2",
    "SC_rgb_dcmtk_+eb+cy+s2",
    "SC_rgb_gdcm_KY",
    "SC_rgb_jpeg_dcmtk",
    "SC_rgb_jpeg_gdcm",
    "SC_rgb_rle_16bit",
    "SC_rgb_rle_32bit",
    "SC_ybr_full_422_uncompressed",
    "SC_rgb_jls_lossy_line",
]


@pytest.mark.parametrize("name", BARS)
def test_colours_are_rgb_whatever_the_file_has(name: str) -> None:
    found = pixels(SHIPPED / f"{name}.dcm", AS_IS, grey=False).astype(int)
    expected = pixels(SHIPPED / "SC_rgb_rle.dcm", AS_IS, grey=False).astype(int)
    assert not header(SHIPPED / f"{name}.dcm").grey
    assert np.median(np.abs(found - expected)) <= 2
    assert np.abs(found - expected).mean() < 4


def test_a_palette_is_looked_up(tmp_path: Path) -> None:
    made = dataset(ramp((2, 2), high=3), 8, "PALETTE COLOR")
    for place, colour in enumerate(("Red", "Green", "Blue")):
        made.add_new(f"{colour}PaletteColorLookupTableDescriptor", "US", [4, 0, 16])
        entries = np.array([0, 10, 20, 30], "<u2") * 256 + place
        made.add_new(f"{colour}PaletteColorLookupTableData", "OW", entries.tobytes())
    file = write(tmp_path / "x.dcm", made)
    assert pixels(file, AS_IS, grey=False).tolist() == [[[0, 10], [20, 30]]] * 3
    assert np.array_equal(grey(file), [[0, 10], [20, 30]])


def test_grey_becomes_three_equal_channels(tmp_path: Path) -> None:
    file = write(tmp_path / "x.dcm", dataset(ramp(), 12))
    assert np.array_equal(pixels(file, AS_IS, grey=False), np.repeat(grey(file)[None], 3, axis=0))


# ---------------------------------------------------------------------- what cannot be used


def without_pixels(folder: Path, *tags: str) -> Path:
    made = dataset(ramp(), 12)
    for name in ("PixelData", *tags):
        delattr(made, name)
    return write(folder / "x.dcm", made)


def test_each_fault_is_of_its_own_kind(tmp_path: Path) -> None:
    assert fault(without_pixels(tmp_path)) == PIXELLESS
    assert fault(without_pixels(tmp_path, "Rows")) == PIXELLESS
    assert fault(SHIPPED / "reportsi.dcm") == PIXELLESS
    assert fault(SHIPPED / "rtdose.dcm") == FRAMES
    pages = [Image.new("L", (4, 4)), Image.new("L", (4, 4), 9)]
    pages[0].save(tmp_path / "x.tiff", save_all=True, append_images=pages[1:])
    assert fault(tmp_path / "x.tiff") == FRAMES
    assert fault(SHIPPED / "MR_truncated.dcm") == UNREADABLE
    assert fault(SHIPPED / "rtstruct.dcm") == PIXELLESS, "without a preamble"
    film = dataset(ramp(), 8)
    film.file_meta.TransferSyntaxUID = UID("1.2.840.10008.1.2.4.100")  # MPEG2
    film.PixelData = encapsulate([b"film"])
    film["PixelData"].is_undefined_length = True
    assert fault(write(tmp_path / "x.dcm", film)) == CODEC
    assert fault(write(tmp_path / "x.dcm", dataset(ramp(), 12, "CIELAB"))) == UNREADABLE


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
@pytest.mark.parametrize("meta", [True, False])
@pytest.mark.parametrize("bits", [8, 12])
def test_a_file_without_a_preamble_is_read_as_with_one(tmp_path: Path, syntax: UID, meta: bool, bits: int) -> None:
    """With its file meta information, or that gone, too."""
    made = dataset(
        ramp(high=2**bits - 1), bits, SOPClassUID="1.2.840.10008.5.1.4.1.1.7", WindowCenter=100, WindowWidth=99
    )
    made.file_meta.TransferSyntaxUID = syntax
    if syntax.is_implicit_VR:
        made["PixelData"].VR = BITS
    file = write(tmp_path / "whole.dcm", made)
    bare = tmp_path / "bare.dcm"
    if meta:
        bare.write_bytes(file.read_bytes()[132:])
    else:
        made.save_as(bare, implicit_vr=syntax.is_implicit_VR, little_endian=True, enforce_file_format=False)
        content = bare.read_bytes()
        bare.write_bytes(content[content.index(b"\x08\0\x16\0") :])
    assert bare.read_bytes()[:1] == (b"\2" if meta else b"\x08")
    assert header(bare) == header(file)
    assert np.array_equal(grey(bare), grey(file))


@pytest.mark.parametrize("start", [b"\2\0\2\0UI\0\0", b"\x08\0\x16\0\x1a\0\0\0", b"\x08\0"])
@pytest.mark.parametrize("rest", [b"", bytes(200), b"1.2.840" * 40])
def test_what_merely_begins_so_is_no_image(tmp_path: Path, start: bytes, rest: bytes) -> None:
    (tmp_path / "x.dcm").write_bytes(start + rest)
    assert fault(tmp_path / "x.dcm") in (NO_IMAGE, UNREADABLE, PIXELLESS)


@pytest.mark.parametrize("slope", ["0", "nan", "inf"])
def test_a_slope_that_leaves_nothing_is_refused(tmp_path: Path, slope: str) -> None:
    made = dataset(ramp(), 12, RescaleIntercept="5")
    made.add_new("RescaleSlope", "DS", "1")
    made["RescaleSlope"]._value = slope
    assert fault(write(tmp_path / "x.dcm", made)) == UNREADABLE


@pytest.mark.parametrize("key", ["Rows", "Columns"])
@pytest.mark.parametrize("change", [-1, 1, -3])
@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, RLELossless, JPEG2000Lossless])
def test_pixels_of_another_size_than_the_header_says_are_refused(
    tmp_path: Path, key: str, change: int, syntax: UID
) -> None:
    made = dataset(ramp(high=255)[:, :16], 8)
    if syntax == RLELossless:
        made.compress(RLELossless)
    elif syntax == JPEG2000Lossless:
        stream = io.BytesIO()
        Image.fromarray(made.pixel_array).save(stream, "JPEG2000", no_jp2=True)
        made.PixelData = encapsulate([stream.getvalue()])
        made["PixelData"].is_undefined_length = True
        made.file_meta.TransferSyntaxUID = JPEG2000Lossless
    assert grey(write(tmp_path / "x.dcm", made)).any()
    setattr(made, key, made[key].value + change)
    assert fault(write(tmp_path / "x.dcm", made)) == UNREADABLE


def test_encrypted_files_are_told_from_damaged_ones(tmp_path: Path) -> None:
    sealed = pydicom.dcmread(without_pixels(tmp_path, "Rows"))
    sealed.EncryptedAttributesSequence = [pydicom.Dataset()]
    assert fault(write(tmp_path / "y.dcm", sealed)) == ENCRYPTED
    (tmp_path / "z.dcm").write_bytes(bytes.fromhex("308204a006092a864886f70d010703a0820491") + bytes(200))
    assert fault(tmp_path / "z.dcm") == ENCRYPTED
    readable = dataset(ramp(), 12, EncryptedAttributesSequence=[pydicom.Dataset()])  # names only, as it often is
    assert grey(write(tmp_path / "y.dcm", readable)).any()


def test_a_size_that_pillow_would_refuse_is_refused(tmp_path: Path) -> None:
    made = dataset(ramp(), 12)
    made.Rows, made.Columns = 65535, 65535
    assert fault(write(tmp_path / "x.dcm", made)) == UNREADABLE


def test_without_pydicom_a_line_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "x.dcm", dataset(ramp(), 12))
    monkeypatch.setitem(sys.modules, "pydicom", None)
    kind = fault(file)
    assert kind == PYDICOM
    assert "pip install -c constraints.txt '.[dicom]'" in kind.mend


# ---------------------------------------------------------------------- damage

SIZE = (16, 20)
many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)


def read_or_refused(file: Path) -> np.ndarray | None:
    """Return the image of a file that may be damaged, None if it is refused; nothing else may happen."""
    try:
        size = header(file)
        found = pixels(file, AS_IS, grey=True)
    except BadImageError:
        return None
    assert found.dtype == np.uint8
    assert found.shape[-2:] == (size.height, size.width)
    return found


@many
@given(place=st.integers(0, 700), change=st.integers(1, 255), preamble=st.booleans(), implicit=st.booleans())
def test_another_byte_of_a_header_is_read_or_refused(
    tmp_path: Path, place: int, change: int, preamble: bool, implicit: bool
) -> None:
    made = dataset(ramp(SIZE), 12, WindowCenter=2000, WindowWidth=900, RescaleSlope="2", RescaleIntercept="-5")
    made.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if implicit else ExplicitVRLittleEndian
    content = bytearray(write(tmp_path / "x.dcm", made).read_bytes()[0 if preamble else 132 :])
    content[place % (len(content) - 2 * SIZE[0] * SIZE[1])] ^= change
    (tmp_path / "x.dcm").write_bytes(content)
    read_or_refused(tmp_path / "x.dcm")


@many
@given(share=st.floats(0, 1, exclude_max=True), preamble=st.booleans())
def test_a_file_that_was_cut_is_refused(tmp_path: Path, share: float, preamble: bool) -> None:
    content = write(tmp_path / "x.dcm", dataset(ramp(SIZE), 12)).read_bytes()[0 if preamble else 132 :]
    (tmp_path / "x.dcm").write_bytes(content[: int(share * len(content))])
    assert read_or_refused(tmp_path / "x.dcm") is None


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        *(("Rows", count) for count in (15, 17, 0, None)),
        *(("Columns", count) for count in (19, 21, 65535)),
        *(("BitsAllocated", bits) for bits in (8, 12, 0)),
        ("RescaleSlope", "0"),
        ("SamplesPerPixel", 3),
        ("NumberOfFrames", 2),
        ("PhotometricInterpretation", "NONE"),
        *((name, None) for name in ("PixelData", "BitsStored", "PhotometricInterpretation")),
    ],
)
@pytest.mark.parametrize("preamble", [True, False])
def test_a_header_that_contradicts_its_pixels_is_refused(tmp_path: Path, tag: str, value: Any, preamble: bool) -> None:
    made = dataset(ramp(SIZE), 12)
    if value is None:
        delattr(made, tag)
    else:
        setattr(made, tag, value)
    file = write(tmp_path / "x.dcm", made)
    file.write_bytes(file.read_bytes()[0 if preamble else 132 :])
    assert read_or_refused(file) is None
