"""MNIST and Fashion-MNIST, from their idx files; MNIST in pairs of digits, for many classes."""

from __future__ import annotations

import gzip
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import avg_pool2d

from datasets.errors import DataError
from datasets.files import Places, downloaded
from datasets.source import Bytes, Ints, Source


def read(name: str, class_name: str, places: Places) -> Source:
    """MNIST or Fashion-MNIST: 70,000 grey images of 28x28, 10 classes, from its four idx files."""
    inside = (f"{name}/{class_name}/raw", f"{class_name}/raw", "")
    found = places.first(partial(_found, inside))
    if found is None:
        sought = [f"{folder}/{{train,t10k}}-*-ubyte, with or without .gz" for folder in places.under(*inside)]
        parts = downloaded(name, class_name, places, sought)
        found = [(part.data.numpy(), part.targets.numpy()) for part in parts]
    (images, classes), (test_images, test_classes) = found
    return Source.official(images[:, None], classes, test_images[:, None], test_classes, 10)


def pairs(places: Places) -> Source:
    """MNIST in pairs, for many classes: two digits side by side, halved to 14x14 each; class 10 a + b of 100.

    Every digit is once on the left. Its neighbour is drawn from the same part of MNIST, once and for all.
    """
    single = read("mnist", "MNIST", places)
    assert single.test is not None, "MNIST has an official test set"
    halved = avg_pool2d(single.inputs.float(), 2).round().to(torch.uint8)
    right, rng = np.empty(len(halved), np.int64), np.random.default_rng(0)
    for part in (~single.test, single.test):
        right[part] = rng.permutation(np.flatnonzero(part))
    inputs = torch.cat([halved, halved[torch.from_numpy(right)]], dim=-1)
    return Source(inputs, 10 * single.classes + single.classes[right], 100, single.test)


def _found(inside: tuple[str, ...], root: Path) -> list[tuple[Bytes, Ints]] | None:
    """Return both parts, from the first of the folders inside of a root that has them."""
    for folder in inside:
        parts = [_pair(root / folder, part) for part in ("train", "t10k")]
        if all(parts):
            return [part for part in parts if part]
    return None


def _pair(folder: Path, part: str) -> tuple[Bytes, Ints] | None:
    """Images and classes of one part; None when either file is missing."""
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        name = f"{part}-{kind}-ubyte"
        file = next((file for end in ("", ".gz") if (file := folder / (name + end)).is_file()), None)
        if file is None:
            return None
        arrays.append(_idx(file))
    images, classes = arrays
    if images.ndim != 3 or classes.ndim != 1 or len(images) != len(classes):
        raise DataError(
            f"{folder}: the {part} files hold images of shape {images.shape} and labels of shape "
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
