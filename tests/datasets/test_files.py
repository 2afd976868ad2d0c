"""Where data sets are looked for when data-root is empty, and what is written where."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edelweiss.datasets import DataConfig, DataError, load_test, reading
from edelweiss.datasets.sources import SOURCES
from edelweiss.datasets.vision import import_torchvision
from tests.datasets.helpers import write_hearts, write_mnist, write_tar, write_users, write_zips

# Each writes a data set to a root, another one for each number.
WRITERS: dict[str, Callable[[Path, int], object]] = {
    "mnist": lambda root, n: write_mnist(root / "mnist" / "MNIST" / "raw", packed=True, seed=n),
    "cifar10": lambda root, n: write_tar(root / "cifar10" / "cifar10_images.tar", shade=100 * n),
    "omniglot": lambda root, n: write_zips(root / "omniglot", characters=6 + 2 * n),
    "heart-disease": lambda root, n: write_hearts(root / "heart_disease", header=False, rows=12 + n),
    "harbox": lambda root, n: write_users(root / "harbox", users=2 + n),
}
every_dataset = pytest.mark.parametrize("dataset", WRITERS)


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that EDELWEISS_DATA names."""
    folder = tmp_path / "named"
    monkeypatch.setenv("EDELWEISS_DATA", str(folder))
    return folder


def inputs(dataset: str, root: Path | str = "") -> np.ndarray:
    test = load_test(DataConfig(dataset=dataset, data_root=str(root), binary=False, download=False))
    assert test is not None
    return test.inputs.numpy()


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@every_dataset
def test_what_the_named_folder_lacks_is_in_the_cache_folder(dataset: str, named: Path, cache: Path) -> None:
    WRITERS[dataset](cache, 1)
    assert np.array_equal(inputs(dataset), inputs(dataset, cache), equal_nan=True)
    assert not named.exists()


def _loop(place: Path) -> Path:
    place.symlink_to(place)
    return place


def _pipe(place: Path) -> Path:
    os.mkfifo(place)
    return place


def _text(place: Path) -> Path:
    place.write_text("text")
    return place


PLACES: dict[str, Callable[[Path], Path | str]] = {
    "5,000 characters": lambda _: "x" * 5000,
    "a long name": lambda _: "x" * 300,
    "many names": lambda _: "/".join(["x" * 200] * 30),
    "nearly as many": lambda _: "/".join(["x" * 199] * 14),
    "nobody's home": lambda _: "~nobody-of-this-name/x",
    "below a device": lambda _: "/dev/null/x",
    "a device": lambda _: "/dev/zero",
    "a loop": _loop,
    "a pipe": _pipe,
    "a file": _text,
    "below a file": lambda place: _text(place) / "x",
    "nothing": lambda place: place,
}


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("key", ["EDELWEISS_DATA", "EDELWEISS_CACHE", "data-root"])
def test_a_place_that_is_no_folder_is_told_for_every_data_set(
    tmp_path: Path, what: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(PLACES[what](tmp_path / "place"))
    if key != "data-root":
        monkeypatch.setenv(key, place)
    in_files = [name for name, row in SOURCES.items() if not row.read.__module__.endswith(".bundled")]
    for dataset in (*in_files, "site-folders"):
        with pytest.raises(DataError) as told:
            load_test(DataConfig(dataset=dataset, data_root=place if key == "data-root" else "", download=False))
        assert place not in told.value.public


@every_dataset
def test_the_named_folder_comes_before_the_cache_folder(dataset: str, named: Path, cache: Path) -> None:
    WRITERS[dataset](cache, 1)
    WRITERS[dataset](named, 2)
    before = files(named)
    found = inputs(dataset)
    assert np.array_equal(found, inputs(dataset, named), equal_nan=True)
    assert not np.array_equal(found, inputs(dataset, cache), equal_nan=True)
    assert files(named) == before, "nothing is written there"


@every_dataset
def test_what_is_missing_everywhere_is_said_with_both_places(dataset: str, named: Path, cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        inputs(dataset)
    assert str(named) in str(caught.value)
    assert str(cache) in str(caught.value)
    assert "not found under EDELWEISS_DATA or the cache folder (data-root is empty)" in caught.value.public
    assert str(named.parent) not in caught.value.public


def test_a_data_root_is_the_only_place(named: Path, cache: Path, tmp_path: Path) -> None:
    WRITERS["mnist"](named, 1)
    WRITERS["mnist"](cache, 1)
    with pytest.raises(DataError) as caught:
        inputs("mnist", tmp_path / "other")
    assert str(named) not in str(caught.value)
    assert str(cache) not in str(caught.value)
    assert "not found under data-root" in caught.value.public


def test_another_environment_is_another_place_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number in (1, 2):
        WRITERS["mnist"](tmp_path / str(number), number)
        monkeypatch.setenv("EDELWEISS_DATA", str(tmp_path / str(number)))
        found.append(inputs("mnist"))
    monkeypatch.delenv("EDELWEISS_DATA")
    monkeypatch.setenv("EDELWEISS_CACHE", str(tmp_path / "1"))
    found.append(inputs("mnist"))
    assert not np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize("root", ["", "own"])
def test_a_download_goes_to_data_root_or_the_cache_folder(
    root: str, named: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / root if root else cache

    class Part:
        def __init__(self, root: Path, train: bool, download: bool) -> None:
            assert (root, download) == (target, True)
            self.data = np.full((200, 32, 32, 3), int(train), np.uint8)
            self.data[..., 2] = 9
            self.targets = [i % 100 for i in range(200)]

    monkeypatch.setattr(import_torchvision().datasets, "CIFAR100", Part)
    test = load_test(DataConfig(dataset="cifar100", data_root=str(target) if root else "", binary=False))
    assert test is not None
    assert (len(test.inputs), len(test), test.shape) == (400, 200, (3, 32, 32))
    assert test.inputs[test.rows].amax((0, 2, 3)).tolist() == [0, 0, 9]
    assert not named.exists()


def test_many_sites_ask_the_disk_once(named: Path) -> None:
    WRITERS["mnist"](named, 1)
    before = reading._source.cache_info().misses
    for seed in range(3):
        load_test(DataConfig(dataset="mnist", seed=seed, download=False))
    assert reading._source.cache_info().misses == before + 1
