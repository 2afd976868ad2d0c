"""Memory-mapped images, read batch by batch: a process never holds all of them."""

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
    """Return a tensor that shares an array's memory; for memory-mapped images it keeps the file, for `gather`.

    The images are all those of the file, or the first ones.
    """
    if not isinstance(inputs, np.memmap) or inputs.dtype != np.uint8:
        return torch.from_numpy(inputs)
    file, start = str(inputs.filename), inputs.offset
    if not Path(file).exists():
        return torch.from_numpy(inputs)
    whole = torch.from_file(file, shared=True, size=start + inputs.nbytes, dtype=torch.uint8)
    if not whole[:start].any():  # no header: the file has just been replaced by a new one
        return torch.from_numpy(inputs)
    return whole[start:].view(inputs.shape)


def file_of(inputs: Tensor) -> str | None:
    """Return the file that a tensor is mapped from; None if it is in memory."""
    name: str | None = inputs.untyped_storage().filename if inputs.device.type == "cpu" else None
    return name


def gather(inputs: Tensor, rows: Tensor) -> Tensor:
    """Return ``inputs.index_select(0, rows)``, a copy; memory-mapped inputs are read from their file.

    Reading through the map would give the same numbers, but its pages count as the process's memory and are loaded one
    by one.

    Raises
    ------
    DataError
        If the file has been truncated.
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
                    text = "was truncated while in use"
                    raise DataError(f"{file} {text}", f"the file of the site's decoded images {text}")
    except FileNotFoundError:  # evicted from the cache; the mapping stays valid
        return inputs.index_select(0, rows)
    return images


def in_blocks(inputs: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Yield rows of the inputs in blocks, to avoid a second copy of a data set."""
    most = BLOCK if inputs.is_floating_point() else max(1, min(BLOCK, BLOCK_BYTES // prod(inputs.shape[1:])))
    for block in torch.split(rows, most):
        yield gather(inputs, block)


def release_pages(images: NDArray[Any]) -> None:
    """Release the pages of a mapped file from this process's memory; they stay in the page cache."""
    mapped: object = images.base
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)
