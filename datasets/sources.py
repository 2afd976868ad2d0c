"""Readers of the data sets known by name. Each returns a `Source`; none knows of sites or labels of a run."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets import harbox as motions
from datasets import omniglot as drawings
from datasets.errors import DataError, examples
from datasets.partition import Ints, Mask
from datasets.vision import import_torchvision

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Source:
    """A whole data set as it was read.

    Parameters
    ----------
    inputs
        Shape (N, F) float32, NaN where missing, or (N, C, H, W) uint8.
    classes
        Shape (N,): original classes, in [0, class_count).
    class_count
        How many classes the data set has, whether or not all occur.
    test
        Shape (N,) bool: the official test rows; None when there is no official test set.
    groups
        Shape (N,): index into `group_names`, the natural site of each row; None when there are none.
    features
        Column names of a table.
    """

    inputs: Tensor
    classes: Ints
    class_count: int
    test: Mask | None = None
    groups: Ints | None = None
    group_names: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


def cache_folder() -> Path:
    """Folder for downloads and decoded images: EDELWEISS_CACHE, else ~/.cache/edelweiss."""
    return Path(os.environ.get("EDELWEISS_CACHE") or "~/.cache/edelweiss").expanduser()


def _root(folder: str) -> Path:
    return Path(folder).expanduser() if folder else cache_folder()


def _bundled(name: str) -> Path:
    """Path of a table that scikit-learn carries; found without importing it, which takes over a second."""
    spec = find_spec("sklearn")
    assert spec is not None, "scikit-learn is a dependency"
    assert spec.origin is not None
    return Path(spec.origin).parent / "datasets" / "data" / name


def breast_cancer(folder: str, download: bool) -> Source:
    """Breast cancer Wisconsin (diagnostic): 569 rows of 30 features; class 1 is malignant."""
    table = np.loadtxt(_bundled("breast_cancer.csv"), delimiter=",", skiprows=1)
    measures = "radius,texture,perimeter,area,smoothness,compactness,concavity,concave points,symmetry,"
    measures += "fractal dimension"
    names = [f"{kind} {measure}" for kind in ("mean", "error", "worst") for measure in measures.split(",")]
    # scikit-learn codes malignant as 0.
    classes = 1 - table[:, -1].astype(np.int64)
    return Source(torch.from_numpy(table[:, :-1].astype(np.float32)), classes, 2, features=tuple(names))


def digits(folder: str, download: bool) -> Source:
    """Handwritten digits of scikit-learn: 1,797 grey images of 8x8 with levels 0 to 16, 10 classes."""
    table = np.loadtxt(_bundled("digits.csv.gz"), delimiter=",").astype(np.uint8)
    inputs = torch.from_numpy(table[:, :-1].reshape(-1, 1, 8, 8))
    return Source(inputs, table[:, -1].astype(np.int64), 10)


HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART_FEATURES = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)


def heart_disease(folder: str, download: bool) -> Source:
    """UCI heart disease: 13 features of 920 patients in four hospitals; class 1 is any disease."""
    root = _root(folder)
    names = [f"{hospital}.data" for hospital in HOSPITALS]
    places = [root / "heart_disease", root]
    place = max(places, key=lambda p: sum((p / name).is_file() for name in names))
    if missing := [name for name in names if not (place / name).is_file()]:
        raise DataError(
            f"heart-disease: {examples(missing)} not found in {places[0]} or {places[1]}; download the "
            "processed.*.data files of https://archive.ics.uci.edu/dataset/45/heart+disease to one of "
            "these folders under those names, or set data-root",
            f"heart-disease: {examples(missing)} not found under data-root",
        )
    tables = [_heart_table(place / name) for name in names]
    table = np.concatenate(tables)
    return Source(
        torch.from_numpy(table[:, :-1].astype(np.float32)),
        (table[:, -1] > 0).astype(np.int64),
        2,
        groups=np.repeat(np.arange(len(tables)), [len(t) for t in tables]),
        group_names=HOSPITALS,
        features=HEART_FEATURES,
    )


def _heart_table(file: Path) -> NDArray[np.float64]:
    """Read one hospital: 13 features and the target per line, `?` for a missing feature."""
    rows, bad = [], []
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        fields = [field.strip() for field in line.split(",")]
        if not line.strip() or (number == 1 and fields[-1] == "target"):
            continue
        try:
            row = [np.nan if field == "?" else float(field) for field in fields]
        except ValueError:
            row = []
        if len(row) != len(HEART_FEATURES) + 1 or not np.isfinite(row[-1]):
            bad.append(f"line {number} ({line[:60]!r})")
        rows.append(row)
    if bad or not rows:
        raise DataError(
            f"{file}: " + (f"{examples(bad)}: " if bad else "no rows: ") + "a line must hold 13 numbers "
            "(or ?) and the target, separated by commas; download the file again",
            f"heart-disease: {file.name} has {len(bad)} bad lines of {len(rows)}",
        )
    return np.array(rows)


def mnist(name: str, class_name: str, folder: str, download: bool) -> Source:
    """MNIST or Fashion-MNIST: 70,000 grey images of 28x28, 10 classes, from its four idx files."""
    root = _root(folder)
    places = [root / name / class_name / "raw", root / class_name / "raw", root]
    for place in places:
        parts = [_idx_pair(place, part) for part in ("train", "t10k")]
        if all(parts):
            (images, classes), (test_images, test_classes) = [part for part in parts if part]
            return _official(images[:, None], classes, test_images[:, None], test_classes, 10)
    sought = [f"{place}/{{train,t10k}}-*-ubyte, with or without .gz" for place in places]
    train, test = _download(name, class_name, root, sought, download)
    return _official(
        train.data.numpy()[:, None],
        train.targets.numpy(),
        test.data.numpy()[:, None],
        test.targets.numpy(),
        10,
    )


def _official(images: Bytes, classes: Ints, test_images: Bytes, test_classes: Ints, count: int) -> Source:
    inputs = torch.from_numpy(np.concatenate([images, test_images]))
    test = np.arange(len(inputs)) >= len(images)
    return Source(inputs, np.concatenate([classes, test_classes]).astype(np.int64), count, test)


def _idx_pair(place: Path, part: str) -> tuple[Bytes, Ints] | None:
    """Images and classes of one part; None when either file is missing."""
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        name = f"{part}-{kind}-ubyte"
        file = next((file for end in ("", ".gz") if (file := place / (name + end)).is_file()), None)
        if file is None:
            return None
        arrays.append(_idx(file))
    images, classes = arrays
    if images.ndim != 3 or classes.ndim != 1 or len(images) != len(classes):
        raise DataError(
            f"{place}: the {part} files hold images of shape {images.shape} and labels of shape "
            f"{classes.shape}; download them again",
            f"the {part} images and labels do not belong together",
        )
    return images, classes.astype(np.int64)


def _idx(file: Path) -> Bytes:
    """Parse the idx format of bytes: 0, 0, 8, the number of axes, each length as 4 bytes, the values."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        zeros, kind, axes = content[:2], content[2], content[3]
        shape = np.frombuffer(content, ">i4", count=axes, offset=4)
        if zeros != b"\0\0" or kind != 8:
            raise ValueError("it does not start as an idx file of bytes")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}; download it again", f"{file.name} cannot be read") from error


def cifar(name: str, class_name: str, count: int, folder: str, download: bool) -> Source:
    """CIFAR-10 or CIFAR-100: 60,000 colour images of 32x32; CIFAR-10 also from a tar of JPEG files."""
    root = _root(folder)
    batches = "cifar-10-batches-py" if count == 10 else "cifar-100-python"
    roots = [root / name, root]
    for place in roots:
        if (place / batches).is_dir():
            return _cifar_source(*_torchvision(class_name, place, download=False), count)
    tars = [place / "cifar10_images.tar" for place in roots] if count == 10 else []
    for tar in tars:
        if tar.is_file():
            names = ("images", "classes", "test_images", "test_classes")
            images, classes, test_images, test_classes = _cached("cifar10", [tar], names, partial(_decode_tar, tar))
            return _official(images, classes, test_images, test_classes, count)
    sought = [str(path) for path in [*(place / batches for place in roots), *tars]]
    return _cifar_source(*_download(name, class_name, root, sought, download), count)


def _cifar_source(train: Any, test: Any, count: int) -> Source:
    images, test_images = (np.ascontiguousarray(part.data.transpose(0, 3, 1, 2)) for part in (train, test))
    return _official(images, np.array(train.targets), test_images, np.array(test.targets), count)


def _torchvision(class_name: str, root: Path, download: bool, part: str = "train") -> tuple[Any, Any]:
    """Both parts of a torchvision data set, which `part` tells apart."""
    make = getattr(import_torchvision().datasets, class_name)
    try:
        return make(root, **{part: True}, download=download), make(root, **{part: False}, download=download)
    except (OSError, RuntimeError, EOFError, HTTPException) as error:
        raise DataError(
            f"{class_name} under {root} cannot be used: {error}", f"{class_name} cannot be read or downloaded"
        ) from error


def _download(
    name: str, class_name: str, root: Path, sought: Sequence[str], download: bool, part: str = "train"
) -> tuple[Any, Any]:
    """Download a torchvision data set, or say what was looked for, where, and how to get it."""
    reason = "download is false"
    if download:
        try:
            return _torchvision(class_name, root, download=True, part=part)
        except (DataError, ImportError) as error:
            reason = f"the download failed ({error})"
    raise DataError(
        f"{name} was not found and {reason}. Looked for:\n  " + "\n  ".join(sought) + "\nPut the files "
        "there, set data-root to the folder that has them, or run once where the internet can be reached: "
        f'python -c "from torchvision.datasets import {class_name} as D; '
        f"[D('{root}', {part}=value, download=True) for value in (True, False)]\"",
        f"{name} was not found under data-root and could not be downloaded",
    )


Decoded = tuple[Bytes, Ints, Bytes, Ints]  # images and classes to train on, then those to test on


def _cached(
    name: str, files: Sequence[Path], names: Sequence[str], decode: Callable[[], Sequence[NDArray[Any]]]
) -> list[NDArray[Any]]:
    """Decode files once; later reads come from the cache folder, if that can be written."""
    stamp = np.array([[stat.st_size, stat.st_mtime_ns] for stat in (file.stat() for file in files)])
    paths = "\n".join(str(file.resolve()) for file in files)
    cache = cache_folder() / f"{name}-{zlib.crc32(paths.encode()):08x}.npz"
    # A cache that is missing, stale, cut short or foreign is made anew.
    with (
        contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile),
        np.load(cache) as old,
    ):
        if np.array_equal(old["stamp"], stamp):
            return [old[name] for name in names]
    decoded = list(decode())
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
            whole = Path(scratch) / cache.name  # renamed when complete: nobody reads half a file
            arrays: dict[str, Any] = dict(zip(names, decoded, strict=True))
            np.savez(whole, stamp=stamp, **arrays)
            os.replace(whole, cache)
    return decoded


def _decode_tar(tar: Path) -> Decoded:
    """Decode {train,test}/<class>/<name>.jpg; sorted class names are the classes 0 to 9."""
    from PIL import Image

    member_name = ""
    try:
        with tarfile.open(tar) as archive:
            members = [m for m in archive if m.isfile() and m.name.endswith((".jpg", ".jpeg", ".png"))]
            parts = [Path(m.name).parts[-3:-1] for m in members]
            names = sorted({part[-1] for part in parts if part})
            images = np.empty((len(members), 3, 32, 32), np.uint8)
            for index, member in enumerate(members):
                member_name = member.name
                with Image.open(archive.extractfile(member)) as image:  # type: ignore[arg-type]
                    images[index] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        where = f"{tar} ({member_name})" if member_name else str(tar)
        raise DataError(
            f"{where} cannot be read: {error}; expected 32x32 JPEG images at train/<class>/<name>.jpg and "
            "test/<class>/<name>.jpg",
            f"{tar.name} cannot be read",
        ) from error
    is_train = np.array([part[:1] == ("train",) for part in parts], np.bool_)
    is_test = np.array([part[:1] == ("test",) for part in parts], np.bool_)
    if len(names) != 10 or not is_train.any() or not is_test.any():
        raise DataError(
            f"{tar} holds {is_train.sum()} training and {is_test.sum()} test images of the classes "
            f"{examples(names)}; expected both, at train/<class>/<name>.jpg and test/<class>/<name>.jpg, of "
            "10 classes",
            f"{tar.name} does not hold the 10 classes of CIFAR-10 in train/ and test/",
        )
    classes = np.searchsorted(names, [part[-1] for part in parts]).astype(np.int64)
    return images[is_train], classes[is_train], images[is_test], classes[is_test]


def omniglot(folder: str, download: bool) -> Source:
    """Omniglot: grey images of 28x28, 20 of each handwritten character; a character turned by 90° is another class.

    Class 4 c + r is character c, turned r times; a character with its turns is a group. The test rows are those of
    423 in 1,623 characters, as in the few-shot papers, chosen once and for all. The two small background sets do
    where the whole data are missing.
    """
    root = _root(folder)
    places = [root / "omniglot", root, root / "omniglot" / "omniglot-py", root / "omniglot-py"]  # or torchvision's
    found = [[place / name for name in parts] for parts in drawings.PARTS for place in places]
    files = next((files for files in found if all(file.is_file() for file in files)), [])
    if not files:
        sought = [f"{place}/{{{','.join(parts)}}}" for parts in drawings.PARTS for place in places]
        _download("omniglot", "Omniglot", root, sought, download, part="background")
        files = [root / "omniglot-py" / name for name in drawings.PARTS[0]]
    images, characters = _cached("omniglot", files, ("images", "characters"), partial(drawings.decode, files))
    turned = np.stack([np.rot90(images, turns, axes=(1, 2)) for turns in range(4)])
    groups, count = np.tile(characters, 4), int(characters.max()) + 1
    return Source(
        torch.from_numpy(turned.reshape(-1, 1, *images.shape[1:])),
        4 * groups + np.repeat(np.arange(4), len(images)),
        4 * count,
        drawings.held_out(count)[groups],
        groups,
    )


def harbox(folder: str, download: bool) -> Source:
    """HARBox (Ouyang et al. 2021, ClusterFL): 900 features of 9 axes of motion, 5 activities; users are natural sites.

    The users are the files <user>.csv under harbox/, in the order of the numbers in their names; see `harbox.decode`.
    """
    root = _root(folder)
    places = [root / "harbox", root]
    files = next((found for place in places if (found := sorted(place.glob("*.csv"), key=_numbered))), [])
    if not files:
        raise DataError(
            f"harbox: no <user>.csv in {places[0]} or {places[1]}; write there, for each user of HARBox, a line per "
            f"window of 2 s with its {len(motions.FEATURES)} numbers and the activity, or set data-root",
            "harbox was not found under data-root",
        )
    inputs, classes, users = _cached("harbox", files, ("inputs", "classes", "users"), partial(motions.decode, files))
    return Source(
        torch.from_numpy(inputs),
        classes,
        len(motions.ACTIVITIES),
        groups=users,
        group_names=tuple(file.stem for file in files),
        features=motions.FEATURES,
    )


def _numbered(file: Path) -> list[int | str]:
    """Sort user 10 behind user 9: text and numbers alternate."""
    return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", file.stem)]


Reader = Callable[[str, bool], Source]  # (data_root, may download)

READERS: dict[str, Reader] = {
    "breast-cancer": breast_cancer,
    "digits": digits,
    "mnist": partial(mnist, "mnist", "MNIST"),
    "fashion-mnist": partial(mnist, "fashion-mnist", "FashionMNIST"),
    "cifar10": partial(cifar, "cifar10", "CIFAR10", 10),
    "cifar100": partial(cifar, "cifar100", "CIFAR100", 100),
    "omniglot": omniglot,
    "heart-disease": heart_disease,
    "harbox": harbox,
}
