"""Data that are damaged, or something else: one line, at once, and nothing of them lost without a word."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from PIL import Image

from edelweiss.common import PROCESS_CACHE
from edelweiss.datasets import DataConfig, DataError, load_site, load_test
from edelweiss.datasets.image_faults import LOOP, MISSING, TWICE, Kind
from edelweiss.datasets.numbers import LARGEST
from tests.datasets.helpers import idx, picture, write_hearts, write_mnist, write_tar, write_users, write_zips
from tests.said import has

ROWS = [["a", "b", "label"], *([str(i), str(i * i % 7), str(i % 2)] for i in range(20))]
once = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)


def refused(config: DataConfig) -> DataError:
    """Return what is said; the public text is a line without path and value."""
    PROCESS_CACHE.forget()
    with pytest.raises(DataError) as caught:
        load_site(config, 0, 2)
    for line in (str(caught.value), caught.value.public):
        assert line.strip()
        assert line.replace("\n", "").isprintable()
        assert len(line) < 1500
    assert config.data_dir not in caught.value.public or not config.data_dir
    return caught.value


def write(folder: Path, rows: list[list[str]]) -> DataConfig:
    (folder / "data.csv").write_text("\n".join(map(",".join, rows)), encoding="utf-8")
    return DataConfig(dataset="site", data_dir=str(folder), seed=0)


BAD_CELL = st.sampled_from(["inf", "-inf", "1e39", f"{LARGEST * 1.01:g}", "1_0", "0x1", "high", "\0", "2020-01-01"])
BAD_NAME = st.sampled_from(["", " ", "Unnamed: 0", "a\0", "\x1b[31m"])


@once
@given(row=st.integers(1, 20), column=st.integers(0, 1), cell=BAD_CELL)
def test_one_cell_that_is_no_number_is_named_by_its_row(tmp_path: Path, row: int, column: int, cell: str) -> None:
    rows = [list(line) for line in ROWS]
    rows[row][column] = cell
    error = refused(write(tmp_path, rows))
    assert has(f"row {row} (", key=rows[0][column], row=row)(error)
    assert error.public.startswith("data.csv: a column has 1 values that are ")


@once
@given(column=st.integers(0, 1), name=BAD_NAME)
def test_a_column_without_a_name_is_no_feature(tmp_path: Path, column: int, name: str) -> None:
    rows = [list(line) for line in ROWS]
    rows[0][column] = name
    error = refused(write(tmp_path, rows))
    assert "no name" in str(error) or "cannot be printed" in str(error)


def test_no_value_at_all_is_nothing_to_learn_from(tmp_path: Path) -> None:
    rows = [ROWS[0], *([" ", "?", line[2]] for line in ROWS[1:])]
    assert "no feature column holds any value" in refused(write(tmp_path, rows)).public
    rows[3][0] = "5"
    PROCESS_CACHE.forget()
    assert load_site(write(tmp_path, rows), 0, 1)


@pytest.mark.parametrize(
    ("content", "is_"),
    [
        (b"<!DOCTYPE html>\n<html></html>\n", "HTML or XML"),
        (b'\n {"a": [1], "label": [0]}\n', "JSON"),
        (b"\xef\xbb\xbf[1, 2]", "JSON"),
        (b"PK\3\4" + bytes(100), "Excel"),
        (gzip.compress(b"a,label\n1,0\n", mtime=0)[:-9], "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_says_what_it_is(tmp_path: Path, content: bytes, is_: str) -> None:
    (tmp_path / "data.csv").write_bytes(content)
    error = refused(DataConfig(dataset="site", data_dir=str(tmp_path)))
    assert is_ in str(error)
    assert is_ in error.public


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"a": [b"\xff\xfe", b"\0"]}, "'a'"),
        ({"a": [1.0, 2.0], " a": [3.0, 4.0]}, "'a'"),
        ({"": [1.0, 2.0]}, "column 1 "),
    ],
)
def test_parquet_is_held_to_the_same(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    pd.DataFrame({**columns, "label": [0, 1]}).to_parquet(tmp_path / "data.parquet")
    assert said in str(refused(DataConfig(dataset="site", data_dir=str(tmp_path))))


def test_a_damaged_parquet_file_is_not_told_to_be_text(tmp_path: Path) -> None:
    file = tmp_path / "data.parquet"
    pd.DataFrame({"a": np.arange(99.0), "label": np.arange(99) % 2}).to_parquet(file)
    os.truncate(file, file.stat().st_size // 2)
    error = refused(DataConfig(dataset="site", data_dir=str(tmp_path)))
    assert "UTF-8" not in str(error)
    assert "Parquet" in str(error)


PATHS: dict[str, Kind] = {
    "p0.png": TWICE,
    "./p0.png": TWICE,
    "link.png": TWICE,
    "loop.png": LOOP,
    "a\0b.png": MISSING,
    "x" * 5000: MISSING,
    "pipe.png": MISSING,
}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: repr(path[:9]))
def test_an_image_twice_and_a_path_that_cannot_be(tmp_path: Path, path: str) -> None:
    for number in range(4):
        Image.new("L", (6, 4), number).save(tmp_path / f"p{number}.png")
    (tmp_path / "link.png").symlink_to("p0.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    os.mkfifo(tmp_path / "pipe.png")
    lines = ["path,label", *(f"p{number}.png,{number % 2}" for number in range(4)), f"{path},1"]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    assert has(f"{PATHS[path].wrong}: row 5 (")(refused(DataConfig(dataset="site", data_dir=str(tmp_path))))


# ---------------------------------------------------------------------- data sets known by name


@pytest.mark.slow
@once
@given(share=st.floats(0.01, 0.99))
def test_an_archive_that_was_cut_loses_nothing_in_silence(tmp_path: Path, share: float) -> None:
    tar = tmp_path / "cifar10_images.tar"
    write_tar(tar)
    whole = tar.read_bytes()
    tar.write_bytes(whole[: int(share * len(whole))])
    config = DataConfig(dataset="cifar10", data_root=str(tmp_path), download=False, seed=int(1e6 * share))
    last = -(-len(whole.rstrip(b"\0")) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    if tar.stat().st_size >= last + 2 * tarfile.BLOCKSIZE:  # of the padding alone
        PROCESS_CACHE.forget()
        assert load_test(config)
    else:
        assert "cifar10_images.tar" in str(refused(config))


def _zeros(file: Path) -> None:
    data = bytearray(file.read_bytes())
    with tarfile.open(file) as archive:
        header = archive.getmembers()[25].offset
    data[header : header + 1024] = bytes(1024)
    file.write_bytes(data)


def _bomb(file: Path) -> None:
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(bytes(2**27), 1))
    file.unlink()


TRAIN, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
KNOWN: dict[str, tuple[str, Callable[[Path], object], str, Callable[[Path], object], str]] = {
    "labels beyond the classes": (
        "mnist",
        lambda d: write_mnist(d / "m", False),
        f"m/{LABELS}",
        lambda f: f.write_bytes(idx(np.full(40, 10, np.uint8))),
        "0 to 9",
    ),
    "images of another size": (
        "mnist",
        lambda d: write_mnist(d / "m", False),
        f"m/{TRAIN}",
        lambda f: f.write_bytes(idx(np.zeros((40, 20, 20), np.uint8))),
        "(n, 28, 28)",
    ),
    "a bomb": ("mnist", lambda d: write_mnist(d / "m", False), f"m/{TRAIN}", _bomb, f"{TRAIN}.gz"),
    "zeros within": (
        "cifar10",
        lambda d: write_tar(d / "m/cifar10_images.tar"),
        "m/cifar10_images.tar",
        _zeros,
        "cifar10_images.tar",
    ),
    "an infinite feature": (
        "heart-disease",
        lambda d: write_hearts(d / "m", False),
        "m/va.data",
        lambda f: f.write_text(f.read_text() + "inf" + ",1" * 13 + "\n"),
        "line 13",
    ),
    "a target that there is not": (
        "heart-disease",
        lambda d: write_hearts(d / "m", False),
        "m/va.data",
        lambda f: f.write_text(f.read_text() + "1" + ",1" * 12 + ",9\n"),
        ",9')",
    ),
    "a number that overflows": (
        "harbox",
        lambda d: write_users(d / "m"),
        "m/1.csv",
        lambda f: f.write_text(f.read_text() + "1e38" + ",1" * 899 + ",0\n"),
        "'1e38'",
    ),
    "a pipe": (
        "harbox",
        lambda d: write_users(d / "m"),
        "m/1.csv",
        lambda f: (f.unlink(), os.mkfifo(f)),
        "1.csv",
    ),
    "half a zip": (
        "omniglot",
        lambda d: write_zips(d / "m"),
        "m/images_background_small1.zip",
        lambda f: os.truncate(f, f.stat().st_size // 2),
        "images_background_small1.zip",
    ),
    "a drawing for a wall": (
        "omniglot",
        lambda d: write_zips(d / "m"),
        "m/images_background_small1.zip",
        lambda f: _added(f, picture(0, 2000)),
        "2000x2000",
    ),
}


def _added(file: Path, content: bytes) -> None:
    import zipfile

    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("set/Alphabet0/character00/more.png", content)


@pytest.mark.parametrize("what", KNOWN)
def test_a_data_set_with_one_file_that_is_not_right_names_it(tmp_path: Path, what: str) -> None:
    dataset, make, file, spoil, said = KNOWN[what]
    make(tmp_path)
    spoil(tmp_path / file)
    config = DataConfig(dataset=dataset, data_root=str(tmp_path / "m"), download=False)
    with pytest.raises(DataError, check=has(said)) as caught:
        load_test(config)
    assert str(tmp_path) not in caught.value.public
