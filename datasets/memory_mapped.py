"""Images that lie in a file and are read from it as they are needed: the process holds a batch, never all of them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edelweiss.datasets.errors import DataError

BLOCK = 8192  # rows
BLOCK_BYTES = 2**24  # of images


def tensor_of(inputs: NDArray[Any]) -> Tensor:
    """Return a tensor that shares an array's memory; of images mapped from a file one that knows it, for `gather`.

    They are all images of the file, or the first ones.
    """
    if not isinstance(inputs, np.memmap) or inputs.dtype != np.uint8:
        return torch.from_numpy(inputs)
    file, start = str(inputs.filename), inputs.offset
    if not Path(file).exists():
        return torch.from_numpy(inputs)
    whole = torch.from_file(file, shared=True, size=start + inputs.nbytes, dtype=torch.uint8)
    if not whole[:start].any():  # no header: the file was removed this very moment, and this is a new one
        return torch.from_numpy(inputs)
    return whole[start:].view(inputs.shape)


def file_of(inputs: Tensor) -> str | None:
    """Return the file that a tensor is mapped from; None where it is in memory."""
    name: str | None = inputs.untyped_storage().filename if inputs.device.type == "cpu" else None
    return name


def gather(inputs: Tensor, rows: Tensor) -> Tensor:
    """Return ``inputs.index_select(0, rows)``, a copy, read from the file where the inputs are mapped from one.

    Reading through the map would be the same numbers, but its pages count as this process's memory until the system
    needs them elsewhere, and come from the disk one by one.

    Raises
    ------
    DataError
        When the file has become shorter.
    """
    file = file_of(inputs)
    if not file:
        return inputs.index_select(0, rows)
    images = torch.empty(len(rows), *inputs.shape[1:], dtype=torch.uint8)
    size, start = prod(inputs.shape[1:]), inputs.storage_offset()
    try:
        with open(file, "rb", buffering=0) as source:
            for image, row in zip(images.numpy(), rows.tolist(), strict=True):
                source.seek(start + row * size)
                if source.readinto(image.data) != size:
                    text = "was cut short while it was in use"
                    raise DataError(f"{file} {text}", f"the file of the site's decoded images {text}")
    except FileNotFoundError:  # it had to make room for others; what is mapped of it stays
        return inputs.index_select(0, rows)
    return images


def in_blocks(inputs: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Yield rows of the inputs in blocks, so that there is no second copy of a data set."""
    most = BLOCK if inputs.is_floating_point() else max(1, min(BLOCK, BLOCK_BYTES // prod(inputs.shape[1:])))
    for block in torch.split(rows, most):
        yield gather(inputs, block)


def let_go(images: NDArray[Any]) -> None:
    """Take the pages of a mapped file, read or written, out of this process's memory; they stay in the system's."""
    mapped: object = images.base
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)
