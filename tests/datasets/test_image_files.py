"""Image files of other depths, sizes and colours: what becomes of their values, and what damaged bytes lead to."""

from __future__ import annotations

import random
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from PIL import Image

from edelweiss.datasets import DataError
from edelweiss.datasets.image_faults import BadImageError, Faults
from edelweiss.datasets.image_file import ImageForm, header, pixels
from edelweiss.datasets.images import read_images
from tests.datasets.dicoms import SHIPPED, dataset, ramp, write
from tests.said import has

AS_IS = ImageForm()
NOISE = np.random.default_rng(0).integers(0, 65536, (12, 10))


@pytest.mark.parametrize(("suffix", "low", "high"), [("png", 0, 4095), ("png", 900, 65535), ("tiff", 3, 1023)])
def test_of_16_bits_the_images_own_range_becomes_0_to_255(tmp_path: Path, suffix: str, low: int, high: int) -> None:
    values = ramp(low=low, high=high)
    Image.fromarray(values.astype(np.uint16)).save(file := tmp_path / f"x.{suffix}")
    found = pixels(file, AS_IS, grey=True)[0].astype(int)
    assert np.abs(found - (values - low) / (high - low) * 255).max() <= 0.51
    assert header(file)[1:] == (16, 20, 16, True)


def test_a_file_of_one_value_is_black_and_one_without_numbers_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 700, np.uint16)).save(file := tmp_path / "x.png")
    assert not pixels(file, AS_IS, grey=True).any()
    Image.fromarray(np.array([[1.0, np.nan]], np.float32)).save(file := tmp_path / "x.tiff")
    with pytest.raises(BadImageError, match="are not finite"):
        pixels(file, AS_IS, grey=True)


def test_deep_images_are_scaled_before_they_are_rounded(tmp_path: Path) -> None:
    """Of a fine pattern of 0.45 and 1.4, of 255, the mean is nearer to 1 than that of 0 and 1 is."""
    values = np.where(np.indices((64, 64)).prod(0) % 2, 360, 115)
    values[:2], values[-2:] = 0, 65535
    Image.fromarray(values.astype(np.uint16)).save(file := tmp_path / "x.png")
    assert pixels(file, ImageForm(8), grey=True)[0, 4].tolist() == [1] * 8


@pytest.mark.parametrize(("width", "height"), [(30, 10), (10, 30), (8, 8), (1000, 1), (5, 3)])
@pytest.mark.parametrize("deep", [False, True])
def test_padding_keeps_all_of_an_image_between_black_borders(
    tmp_path: Path, width: int, height: int, deep: bool
) -> None:
    values = np.random.default_rng(1).integers(100, 256, (height, width))
    picture = Image.fromarray(values.astype(np.uint8))
    scale = 8 / max(width, height)
    inner = (max(1, round(width * scale)), max(1, round(height * scale)))
    expected = np.zeros((8, 8))
    left, top = (8 - inner[0]) // 2, (8 - inner[1]) // 2
    middle = np.asarray(picture.resize(inner, Image.Resampling.BILINEAR), float)
    if deep:
        low, high = values.min(), values.max()
        middle = (middle - low) / (high - low) * 255
        Image.fromarray(values.astype(np.uint16) * 100).save(tmp_path / "x.png")
    else:
        picture.save(tmp_path / "x.png")
    expected[top : top + inner[1], left : left + inner[0]] = middle
    found = pixels(tmp_path / "x.png", ImageForm(8, "pad"), grey=True)[0]
    assert np.abs(found - expected).max() <= (2.5 if deep else 0)


@pytest.mark.parametrize("fit", ["crop", "pad"])
@pytest.mark.parametrize("deep", [False, True])
def test_scaling_down_averages(tmp_path: Path, fit: str, deep: bool) -> None:
    fine = (np.indices((60, 60)).sum(0) % 2) * (65535 if deep else 255)
    Image.fromarray(fine.astype(np.uint16 if deep else np.uint8)).save(tmp_path / "x.png")
    found = pixels(tmp_path / "x.png", ImageForm(5, fit), grey=True).astype(int)  # type: ignore[arg-type]
    assert np.abs(found - 127).max() <= 2


def mixed(folder: Path) -> dict[str, Path]:
    """Write a grey image of 8 bits, one of 16, a DICOM file and one of colours; the last is colourless by the luma."""
    Image.fromarray((NOISE // 256).astype(np.uint8)).save(folder / "grey.png")
    Image.fromarray(NOISE.astype(np.uint16)).save(folder / "deep.png")
    write(folder / "x.dcm", dataset(NOISE, 16))
    Image.new("RGB", (10, 12), (200, 100, 0)).save(folder / "colour.png")
    return {name: folder / name for name in ("grey.png", "deep.png", "x.dcm", "colour.png")}


@pytest.mark.parametrize(
    ("colour", "grey_only", "channels"),
    [("auto", True, 1), ("auto", False, 3), ("grey", False, 1), ("grey", True, 1), ("rgb", True, 3), ("rgb", False, 3)],
)
def test_colour_is_the_studys_choice(tmp_path: Path, colour: str, grey_only: bool, channels: int) -> None:
    files = mixed(tmp_path)
    if grey_only:
        del files["colour.png"]
    problems: list[DataError] = []
    images = read_images(files, ImageForm(0, "crop", colour), Faults(tmp_path, ""), problems)  # type: ignore[arg-type]
    assert not problems
    assert images.shape == (len(files), channels, 12, 10)
    assert (images[:3] == images[:3, :1]).all(), "grey images have equal channels"
    if not grey_only:
        luma = round(0.299 * 200 + 0.587 * 100)
        assert images[3, :, 0, 0].tolist() == ([luma] if channels == 1 else [200, 100, 0])


# ---------------------------------------------------------------------- damaged bytes


PILLOWS = ("png", "jpg", "tiff", "gif", "bmp", "webp")
SHIPPED_KINDS = (
    "MR_small_RLE",
    "MR_small_jp2klossless",
    "MR_small_jpeg_ls_lossless",
    "SC_rgb_jpeg_gdcm",
    "SC_rgb_jpeg_dcmtk",
    "examples_palette",
)
NAMES = (
    *(f"grey.{kind}" for kind in PILLOWS),
    "deep.png",
    "deep.jp2",
    "plain.dcm",
    *(f"{kind}.dcm" for kind in SHIPPED_KINDS),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One file of each kind that is read."""
    folder = tmp_path_factory.mktemp("whole")
    grey, deep = Image.fromarray((NOISE // 256).astype(np.uint8)), Image.fromarray(NOISE.astype(np.uint16))
    for kind in PILLOWS:
        grey.save(folder / f"grey.{kind}")
    deep.save(folder / "deep.png")
    deep.save(folder / "deep.jp2")
    write(folder / "plain.dcm", dataset(NOISE, 16, WindowCenter=300, WindowWidth=500))
    files = [*folder.iterdir(), *(SHIPPED / f"{name}.dcm" for name in SHIPPED_KINDS)]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**9), cut=st.booleans())
@pytest.mark.parametrize("name", NAMES)
def test_damaged_bytes_are_an_image_or_a_fault_of_a_kind(
    whole: dict[str, bytes], tmp_path: Path, name: str, seed: int, cut: bool
) -> None:
    content, rng = bytearray(whole[name]), random.Random(seed)
    if cut:
        del content[rng.randrange(len(content)) :]
    else:
        for _ in range(rng.choice([1, 4, 30])):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    (file := tmp_path / name).write_bytes(content)
    faults, problems = Faults(tmp_path, "", share=0.9, rows=2), list[DataError]()
    images = read_images({"x": file}, ImageForm(16), faults, problems)
    assert not problems
    assert len(images) + len(faults.bad) == 1
    for error in faults.warnings():
        assert str(error).isprintable()
        assert len(str(error)) < 600


def test_a_small_file_of_many_pixels_is_refused_as_pillow_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    write(tmp_path / "x.dcm", dataset(ramp((8, 8)), 12))
    for name, said in (("x.png", 64), ("x.dcm", "8x8")):
        with pytest.raises(BadImageError, check=has(said)):
            header(tmp_path / name)
