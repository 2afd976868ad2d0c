"""Decoded images are kept: read again without decoding, and never when a file has changed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edelweiss.client_app.local_data import image_cache
from edelweiss.config import SiteConfig
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.image_cache import ImageCache
from edelweiss.datasets.image_faults import NO_IMAGE, UNREADABLE, Faults
from edelweiss.datasets.image_file import ImageForm
from edelweiss.datasets.images import read_images
from tests.said import has

SIDE, COUNT = 8, 5
BYTES = COUNT * SIDE * SIDE


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    made = {}
    for number in range(COUNT):
        path = tmp_path / "data" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE), np.uint8)).save(path)
        made[f"row {number}"] = path
    return made


def read(files: dict[str, Path], cache: ImageCache | None, size: int = 0) -> np.ndarray:
    problems: list[DataError] = []
    images = read_images(files, ImageForm(size), Faults(Path("labels.csv"), "labels.csv"), problems, cache)
    if problems:
        raise DataError.join(problems)
    return images


def spoil(path: Path, *, noticed: bool) -> None:
    """Write nonsense of the same length into a file; its time tells, or does not."""
    before = path.stat()
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + noticed))


def test_what_is_kept_is_what_was_decoded_and_is_not_decoded_again(files: dict[str, Path], tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "cache", 10**6)
    plain = read(files, None)
    assert np.array_equal(read(files, cache), plain)
    for path in files.values():
        spoil(path, noticed=False)
    assert np.array_equal(read(files, cache), plain)


@pytest.mark.parametrize("change", ["time", "size", "order", "scale"])
def test_whatever_changes_is_read_anew(files: dict[str, Path], tmp_path: Path, change: str) -> None:
    cache, size = ImageCache(tmp_path / "cache", 10**6), 0
    before = read(files, cache)
    first, *_, last = files.values()
    if change == "time":
        spoil(first, noticed=True)
        with pytest.raises(DataError, check=has("labels.csv", NO_IMAGE.wrong, "row 0")):
            read(files, cache)
        assert not list((tmp_path / "cache").glob("*.draft"))
        return
    if change == "size":
        Image.fromarray(np.zeros((SIDE, SIDE), np.uint8)).save(last)
    if change == "order":
        files = dict(reversed(files.items()))
    if change == "scale":
        size = SIDE // 2
    after = read(files, cache, size)
    assert np.array_equal(after, read(files, None, size))
    assert not np.array_equal(after, before)


@pytest.mark.parametrize("bound", [BYTES - 1, BYTES])
def test_a_site_keeps_as_many_gigabytes_as_its_operator_says(
    files: dict[str, Path], tmp_path: Path, bound: int
) -> None:
    cache = image_cache(SiteConfig.parse({"state-dir": str(tmp_path / "state"), "image-cache": bound / 1e9}))
    assert np.array_equal(read(files, cache), read(files, None))
    assert bool(list((tmp_path / "state").rglob("*.npy"))) == (bound == BYTES)


def test_a_damaged_file_is_made_again(files: dict[str, Path], tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "cache", 10**6)
    plain = np.array(read(files, cache))  # a copy: what is mapped goes with its file
    places = list((tmp_path / "cache").iterdir())
    assert len(places) == 2, "the images, and what was wrong with the files"
    for place in places:
        for content in (b"", place.read_bytes()[:20], b"\0" * 500):
            place.unlink()
            place.write_bytes(content)
            assert np.array_equal(read(files, cache), plain)


def test_of_what_is_too_much_the_oldest_goes(files: dict[str, Path], tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "cache", 1000)  # room for two, with their headers
    places = []
    for number in range(3):
        read(dict(list(files.items())[: COUNT - number]), cache)
        places.append(cache.place(dict(list(files.items())[: COUNT - number]), ImageForm()))
        for age, place in enumerate(reversed(places)):
            if place.exists():
                os.utime(place, (1e9 - age, 1e9 - age))
    assert [place.exists() for place in places] == [False, True, True]


@pytest.mark.parametrize("bound", [0, BYTES - 1])
def test_without_room_they_are_in_memory(files: dict[str, Path], tmp_path: Path, bound: int) -> None:
    cache = ImageCache(tmp_path / "cache", bound)
    assert np.array_equal(read(files, cache), read(files, None))
    assert not list((tmp_path / "cache").glob("*"))


def test_what_is_too_large_leaves_the_others_alone(files: dict[str, Path], tmp_path: Path) -> None:
    few = dict(list(files.items())[:1])
    cache = ImageCache(tmp_path / "cache", BYTES - 1)
    read(few, cache)
    read(files, cache)
    assert cache.place(few, ImageForm()).exists()


def test_an_image_that_cannot_be_decoded_leaves_no_draft(files: dict[str, Path], tmp_path: Path) -> None:
    first = next(iter(files.values()))
    first.write_bytes(first.read_bytes()[:50])  # its header is whole
    with pytest.raises(DataError, check=has("labels.csv", UNREADABLE.wrong, "row 0")):
        read(files, ImageCache(tmp_path / "cache", 10**6))
    assert not list((tmp_path / "cache").iterdir())


def test_where_nothing_can_be_written_they_are_in_memory(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the folder's place")
    assert np.array_equal(read(files, ImageCache(tmp_path / "cache", 10**6)), read(files, None))


def test_two_processes_that_decode_the_same_images_leave_each_other_alone(
    files: dict[str, Path], tmp_path: Path
) -> None:
    cache = ImageCache(tmp_path / "cache", 10**6)
    plain, place = read(files, None), cache.place(files, ImageForm())
    one, other = cache.make(place, plain.shape), cache.make(place, plain.shape)
    assert one is not None
    assert other is not None
    one[:], other[: len(plain) // 2] = plain, plain[: len(plain) // 2]
    kept = cache.keep(place, one, len(plain), [], list(files))
    other[len(plain) // 2 :] = plain[len(plain) // 2 :]
    assert np.array_equal(kept, plain)
    assert np.array_equal(cache.keep(place, other, len(plain), [], list(files)), plain)
    assert np.array_equal(read(files, cache), plain)
    assert not list((tmp_path / "cache").glob("*.draft"))


def test_a_disk_that_is_full_is_said_before_a_mapping_is_written_to(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to a page that has no place on the disk would end the process."""

    def full(file: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    cache = ImageCache(tmp_path / "cache", 10**6)
    assert np.array_equal(read(files, cache), read(files, None))
    assert not list((tmp_path / "cache").iterdir())


def test_only_an_old_draft_is_removed(files: dict[str, Path], tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "cache", 10**6)
    (tmp_path / "cache").mkdir()
    old, new = (tmp_path / "cache" / f"images-{name}.draft" for name in ("old", "new"))
    for draft in (old, new):
        draft.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    read(files, cache)
    assert (old.exists(), new.exists()) == (False, True)
