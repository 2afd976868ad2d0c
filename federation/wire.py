"""Named vectors on the wire: one Flower ``Array`` each, in NumPy's own file format, copied once on the way out."""

from __future__ import annotations

import io
import math
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.problems import Arrays

LARGEST = 1e18  # the square of what is larger overflows, and so will whatever is made of it

# Received bytes are read in place; nobody may write to them (see `unpack`), so torch need not warn that nobody can.
warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writable", category=UserWarning)


@lru_cache(maxsize=1024)
def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return what NumPy's file format writes before the values."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
    return out.getvalue()


def pack(arrays: Arrays) -> ArrayRecord:
    """Serialise named vectors; ``packed[name].numpy()`` reads one anywhere."""
    packed = ArrayRecord()
    for name, vector in arrays.items():
        values = vector.detach().cpu().contiguous().numpy()
        dtype, shape = str(vector.dtype).removeprefix("torch."), tuple(vector.shape)  # NumPy's names are the same
        data = b"".join((header(dtype, shape), values.data.cast("B") if values.size else b""))
        packed[name] = Array(dtype, shape, "numpy.ndarray", data)
    return packed


def unpack(packed: ArrayRecord, device: torch.device | str = "cpu") -> Arrays:
    """Read named vectors without copying them; on the CPU they are views of the message and must not be written to."""
    arrays: Arrays = {}
    for name, array in packed.items():
        dtype = np.dtype(array.dtype)
        count = math.prod(array.shape)
        values = np.frombuffer(array.data, dtype, count, offset=len(array.data) - count * dtype.itemsize)
        arrays[name] = torch.from_numpy(values.reshape(array.shape)).to(device)
    return arrays


def beyond(arrays: Arrays, largest: float = LARGEST) -> list[str]:
    """Return the names of the vectors of floats with an entry that is NaN, or larger than this; one pass over each."""
    floats = {name: v for name, v in arrays.items() if v.is_floating_point() and v.numel()}
    return [name for name, v in floats.items() if not magnitude(v) <= largest]


def magnitude(vector: Tensor) -> float:
    """Return the largest absolute value, NaN if there is one."""
    low, high = torch.aminmax(vector)
    return max(-low.item(), high.item()) if low == low else math.nan


def not_finite(arrays: Arrays) -> list[str]:
    """Return the names of the vectors that hold a NaN or an infinity."""
    return beyond(arrays, torch.finfo(torch.float64).max)


def size(packed: ArrayRecord) -> int:
    """Return the bytes of the vectors themselves: the communication that the papers count."""
    return sum(math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in packed.values())
