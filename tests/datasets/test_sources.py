"""Readers of the data sets known by name, on real files where there are some and on small made ones."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from edelweiss.datasets import DataConfig, DataError, load_site, load_test
from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.sources import cifar, heart_disease
from edelweiss.datasets.vision import import_torchvision
from tests.datasets.helpers import CIFAR_CLASSES, write_hearts, write_mnist, write_tar
from tests.said import has


@pytest.mark.parametrize(
    ("dataset", "place", "packed"),
    [
        ("mnist", "mnist/MNIST/raw", True),
        ("mnist", "MNIST/raw", False),
        ("mnist", ".", True),
        ("fashion-mnist", "fashion-mnist/FashionMNIST/raw", False),
    ],
)
def test_idx_files(tmp_path: Path, dataset: str, place: str, packed: bool) -> None:
    root = tmp_path / "root"
    arrays = write_mnist(root / place, packed)
    config = DataConfig(dataset=dataset, data_root=str(root), binary=False, download=False)
    test, train = load_test(config), load_site(config, 0, 1).train
    assert test is not None
    assert test.shape == (1, 28, 28)
    assert np.array_equal(test.inputs[test.rows, 0].numpy(), arrays["t10k-images-idx3"])
    assert np.array_equal(test.targets().numpy(), arrays["t10k-labels-idx1"])
    assert np.array_equal(train.inputs[train.rows, 0].numpy(), arrays["train-images-idx3"][train.rows.numpy()])
    assert sorted(path.name for path in (root / place).iterdir() if path.is_file()) == sorted(
        f"{name}-ubyte{'.gz' if packed else ''}" for name in arrays
    )  # nothing unpacked


def test_pairs_of_digits_are_two_halved_digits_of_the_same_part_and_their_classes(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path / "mnist/MNIST/raw", packed=False)
    config = DataConfig(dataset="mnist-pairs", data_root=str(tmp_path), binary=False, holdout_share=0, download=False)
    test, train = load_test(config), load_site(config, 0, 1).train
    assert test is not None
    for part, samples in (("train", train), ("t10k", test)):
        images, labels = arrays[f"{part}-images-idx3"].astype(float), arrays[f"{part}-labels-idx1"]
        halved = np.rint(images.reshape(-1, 14, 2, 14, 2).mean((2, 4))).astype(np.uint8)
        place_of = {
            (digit.tobytes(), label): place for place, (digit, label) in enumerate(zip(halved, labels, strict=True))
        }
        found = samples.inputs[samples.rows, 0].numpy()
        classes = samples.targets().numpy()
        sides = [
            [
                place_of[np.ascontiguousarray(image[:, half]).tobytes(), label]
                for image, label in zip(found, of_side, strict=True)
            ]
            for half, of_side in ((slice(0, 14), classes // 10), (slice(14, 28), classes % 10))
        ]
        assert [sorted(side) for side in sides] == [list(range(len(labels)))] * 2, "every digit once on either side"
        assert sides[0] != sides[1]


@pytest.mark.parametrize(
    "spoil", [lambda content: content[:-1], lambda content: b"x" + content[1:], lambda content: b""]
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, spoil: object) -> None:
    root = tmp_path / "root"
    write_mnist(root, packed=False)
    file = root / "train-images-idx3-ubyte"
    file.write_bytes(spoil(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, check=has(file)) as caught:
        load_test(DataConfig(dataset="mnist", data_root=str(root), download=False))
    assert str(tmp_path) not in caught.value.public


def test_what_is_not_found_says_where_it_was_sought(tmp_path: Path) -> None:
    for dataset, sought in (
        ("mnist", "MNIST/raw"),
        ("cifar10", "cifar10_images.tar"),
        ("cifar100", "cifar-100-python"),
    ):
        with pytest.raises(DataError, check=has(dataset, sought, tmp_path, key="data-root")) as caught:
            load_test(DataConfig(dataset=dataset, data_root=str(tmp_path), download=False))
        assert str(tmp_path) not in caught.value.public


def test_a_failed_download_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    torchvision = import_torchvision()
    monkeypatch.setattr(torchvision.datasets, "CIFAR100", offline)
    with pytest.raises(DataError, check=has("cifar100", "no route to host")) as caught:
        load_test(DataConfig(dataset="cifar100", data_root=str(tmp_path)))
    assert "could not be downloaded" in caught.value.public


@pytest.mark.parametrize("place", ["cifar10", "."])
def test_a_tar_of_jpeg_files(tmp_path: Path, place: str) -> None:
    write_tar(tmp_path / place / "cifar10_images.tar")
    config = DataConfig(dataset="cifar10", data_root=str(tmp_path), binary=False, download=False)
    test, train = load_test(config), load_site(config, 0, 1).train
    assert test is not None
    assert test.shape == (3, 32, 32)
    assert test.targets().bincount().tolist() == [2] * 10
    assert train.labels[torch.cat([train.rows, load_site(config, 0, 1).held_out.rows])].bincount().tolist() == [3] * 10
    red = test.inputs[:, 0].float().mean((1, 2))
    assert (red - 20 * test.labels).abs().max() < 4


def decoded(root: Path) -> np.ndarray:
    return cifar.read("cifar10", "CIFAR10", 10, SearchPath.of(str(root), False)).inputs.numpy()


def test_the_tar_is_decoded_once_and_again_when_it_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = tmp_path / "cifar10_images.tar"
    write_tar(tar)
    first = decoded(tmp_path)
    [file] = cache.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(cifar, "_decode", lambda tar: pytest.fail("decoded again"))
        assert np.array_equal(decoded(tmp_path), first)
    write_tar(tar, shade=200)
    os.utime(tar, ns=(1, 1))
    second = decoded(tmp_path)
    assert second[:, 1].mean() > 150
    file.write_bytes(file.read_bytes()[:1000])
    assert np.array_equal(decoded(tmp_path), second)
    assert [path.name for path in cache.iterdir()] == [file.name]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "cifar10_images.tar")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EDELWEISS_CACHE", str(tmp_path / "file"))
    assert len(decoded(tmp_path)) == 50


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda tar: write_tar(tar, size=16), "airplane/0000.jpg"),
        (lambda tar: write_tar(tar, classes=CIFAR_CLASSES[:3]), "airplane, automobile, bird;"),
        (lambda tar: tar.write_bytes(b"not a tar" * 200), "cifar10_images.tar"),
    ],
)
def test_another_tar_is_refused(tmp_path: Path, make: object, says: str) -> None:
    make(tmp_path / "cifar10_images.tar")  # type: ignore[operator]
    with pytest.raises(DataError, check=has(says)) as caught:
        decoded(tmp_path)
    assert str(tmp_path) not in caught.value.public


@pytest.mark.parametrize(("place", "header"), [("heart_disease", True), (".", False)])
def test_heart_disease_files(tmp_path: Path, place: str, header: bool) -> None:
    write_hearts(tmp_path / place, header)
    config = DataConfig(dataset="heart-disease", data_root=str(tmp_path), partition="sites")
    for number, hospital in enumerate(heart_disease.HOSPITALS):
        part = load_site(config, number, 4)
        assert part.name == hospital
        assert part.missing == len(part.train)
        assert set(part.train.inputs[part.train.rows, 1].tolist()) == {number}
        assert part.features == heart_disease.FEATURES
    assert part.train.labels.tolist() == [int(row % 3 > 0) for row in range(12)] * 4


def test_heart_disease_that_is_missing_or_damaged(tmp_path: Path) -> None:
    config = DataConfig(dataset="heart-disease", data_root=str(tmp_path))
    with pytest.raises(DataError, check=has("cleveland.data, hungarian.data", key="data-root")) as caught:
        load_test(config)
    assert str(tmp_path) not in caught.value.public
    write_hearts(tmp_path, header=False)
    file = tmp_path / "va.data"
    file.write_text(file.read_text() + "1,2,3\nx,1,1,1,1,1,1,1,1,1,1,1,1,1\n")
    with pytest.raises(DataError, check=has(file, "line 13", "line 14")) as caught:
        load_test(config)
    assert caught.value.public == "heart-disease: va.data has 2 bad lines of 14"


def test_real_hospitals(data_root: str) -> None:
    config = DataConfig(dataset="heart-disease", data_root=data_root, partition="sites")
    plain = DataConfig(dataset="heart-disease", data_root=data_root, partition="sites", test_share=0, holdout_share=0)
    whole = [load_site(plain, site, 4) for site in range(4)]
    assert [len(part.train) for part in whole] == [303, 294, 123, 200]
    shares = [part.train.targets().double().mean().item() for part in whole]
    assert shares == pytest.approx([0.46, 0.36, 0.93, 0.74], abs=0.01)
    test = load_test(config)
    assert test is not None
    for site, part in enumerate(whole):  # the common test set has its share of every hospital
        mine = np.isin(test.rows.numpy(), part.train.rows.numpy()).sum()
        assert mine == pytest.approx(0.25 * len(part.train), abs=1)
        assert not set(load_site(config, site, 4).train.rows.tolist()) & set(test.rows.tolist())
    with pytest.raises(DataError, check=has(key="sites", value=3, allowed=4)):
        load_site(config, 0, 3)
    assert len(load_site(DataConfig(dataset="heart-disease", data_root=data_root), 0, 6).train) > 50


def test_real_mnist(data_root: str) -> None:
    config = DataConfig(dataset="mnist", data_root=data_root, binary=False, holdout_share=0, download=False)
    test, train = load_test(config), load_site(config, 0, 1).train
    assert test is not None
    assert (len(train), len(test), train.shape) == (60000, 10000, (1, 28, 28))
    assert test.targets()[:5].tolist() == [7, 2, 1, 0, 4]  # well known
    assert len(train.targets().unique()) == 10


@pytest.mark.slow
def test_real_cifar(data_root: str, tmp_path: Path) -> None:
    """Every twentieth image of the real file: all of them take 20 s to decode."""
    whole_file, some = Path(data_root) / "cifar10" / cifar.TAR, tmp_path / cifar.TAR
    images = 0
    with whole_file.open("rb") as whole, some.open("wb") as thinned:  # `tarfile` takes seconds for as many heads
        while any(head := whole.read(tarfile.BLOCKSIZE)):
            size = int(head[124:135], 8)
            image = whole.read(-(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
            if images % 20 == 0:
                thinned.write(head + image)
            images += 1
        thinned.write(bytes(2 * tarfile.BLOCKSIZE))
    assert images == 60_000
    config = DataConfig(dataset="cifar10", data_root=str(tmp_path), binary=False, holdout_share=0, download=False)
    test, train = load_test(config), load_site(config, 0, 1).train
    assert test is not None
    assert train.targets().bincount().tolist() == [250] * 10
    assert test.targets().bincount().tolist() == [50] * 10
    blue = train.inputs[:, 2].float().mean((1, 2))
    assert blue[train.labels == 0].mean() > blue[train.labels == 6].mean() + 30  # sky behind planes, not frogs
