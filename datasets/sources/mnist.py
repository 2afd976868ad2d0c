"""MNIST and Fashion-MNIST from their idx files, and pairs of MNIST's digits as 100 classes."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import avg_pool2d

from edelweiss.common.files import read_file, reason
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.files import SearchPath, downloaded
from edelweiss.datasets.source import Bytes, Ints, Source

CLASSES = 10
SIDE = 28
MOST = 2**30  # most bytes of an uncompressed file


def read(name: str, class_name: str, search_path: SearchPath) -> Source:
    """MNIST or Fashion-MNIST: 70,000 grey images of 28x28, 10 classes, from its four idx files."""
    inside = (f"{name}/{class_name}/raw", f"{class_name}/raw", "")
    found = search_path.first(partial(_found, inside))
    if found is None:
        sought = [f"{folder}/{{train,t10k}}-*-ubyte, with or without .gz" for folder in search_path.under(*inside)]
        parts = downloaded(name, class_name, search_path, sought)
        found = [(part.data.numpy(), part.targets.numpy()) for part in parts]
    (images, classes), (test_images, test_classes) = found
    return Source.official(images[:, None], classes, test_images[:, None], test_classes, CLASSES)


def pairs(search_path: SearchPath) -> Source:
    """Pairs of MNIST's digits: a and b side by side, halved to 14x14 each; class 10 a + b of 100.

    Each digit is once on the left; its neighbour is drawn from the same part of MNIST by a fixed seed.
    """
    single = read("mnist", "MNIST", search_path)
    assert single.test is not None, "MNIST has an official test set"
    halved = avg_pool2d(single.inputs.float(), 2).round().to(torch.uint8)
    right, rng = np.empty(len(halved), np.int64), np.random.default_rng(0)
    for part in (~single.test, single.test):
        right[part] = rng.permutation(np.flatnonzero(part))
    inputs = torch.cat([halved, halved[torch.from_numpy(right)]], dim=-1)
    return Source(inputs, 10 * single.classes + single.classes[right], 100, single.test)


def _found(inside: tuple[str, ...], root: Path) -> list[tuple[Bytes, Ints]] | None:
    """Return both parts from the first folder of a root that has them."""
    for folder in inside:
        parts = [_pair(root / folder, part) for part in ("train", "t10k")]
        if all(parts):
            return [part for part in parts if part]
    return None


def _pair(folder: Path, part: str) -> tuple[Bytes, Ints] | None:
    """Return images and classes of one part; None if either file is missing."""
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        name = f"{part}-{kind}-ubyte"
        file = next((file for end in ("", ".gz") if (file := folder / (name + end)).is_file()), None)
        if file is None:
            return None
        arrays.append(_idx(file))
    images, classes = arrays
    if classes.size and classes.max() >= CLASSES:
        raise DataError(
            f"{folder}: the {part} labels go up to {classes.max()}; allowed: 0 to {CLASSES - 1}; download them again",
            f"the {part} labels are not of {CLASSES} classes",
        )
    if images.shape[1:] != (SIDE, SIDE) or classes.ndim != 1 or len(images) != len(classes):
        raise DataError(
            f"{folder}: the {part} files hold images of shape {images.shape} and labels of shape "
            f"{classes.shape}, not (n, {SIDE}, {SIDE}) and (n,); download them again",
            f"the {part} images and labels do not belong together",
        )
    return images, classes.astype(np.int64)


def _idx(file: Path) -> Bytes:
    """Parse the idx format of bytes: 0, 0, 8, the number of axes, each length as 4 bytes, the values."""
    try:
        data = read_file(file)
        with gzip.open(io.BytesIO(data)) if file.suffix == ".gz" else io.BytesIO(data) as stream:
            zeros, kind, axes = stream.read(2), *(stream.read(2) + b"\0\0")[:2]
            if zeros != b"\0\0" or kind != 8 or axes not in (1, 3):
                raise ValueError("it does not begin like an idx file of images or labels")
            shape = np.frombuffer(stream.read(4 * axes), ">u4").tolist()
            if (size := math.prod(shape)) > MOST:
                raise ValueError(f"its header announces {size:,} bytes; at most {MOST:,} are allowed")
            content = stream.read(size + 1)
        if len(content) != size or not size:
            raise ValueError(f"it does not hold the {size:,} bytes that its header announces")
        return np.frombuffer(content, np.uint8).reshape(shape)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        text = f"{file} cannot be read: {reason(error)}; download it again"
        raise DataError(text, f"{file.name} cannot be read") from error
