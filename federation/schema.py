"""What vectors a message may hold: a table of names, shapes and types, held against it before any value is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from federation.wire import header
from keys.schema import NAMED, in_a_line
from keys.suggest import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flwr.app import Array
    from torch import Tensor

    from problems import Arrays


DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "float16", "uint16", "int8")


@dataclass(frozen=True)
class Vector:
    """One vector of a table."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor) -> Vector:
        """Describe a vector."""
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    @property
    def bytes(self) -> int:
        """Of its values."""
        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


Table = dict[str, Vector]
"""The vectors of a message, by name."""


def table(arrays: Arrays) -> Table:
    """Describe vectors."""
    return {name: Vector.of(vector) for name, vector in arrays.items()}


def misfits(record: Mapping[str, Any], tables: Iterable[Table]) -> str:
    """Say why arrays fit none of these tables, by the one that comes nearest; empty if they fit one.

    Parameters
    ----------
    record : mapping
        Flower's ``ArrayRecord``; no byte of its arrays' values is read.
    tables : iterable of Table
        At least one; taken one by one, until one fits.
    """
    nearest: list[str] | None = None
    for one in tables:
        if not (wrong := _wrong(record, one)):
            return ""
        if nearest is None or len(wrong) < len(nearest):
            nearest = wrong
    return in_a_line(nearest or [])


def sound(array: Array) -> bool:
    """Whether an array's bytes are those of a vector such as it says it is, of a type that algorithms use."""
    if array.stype != "numpy.ndarray" or array.dtype not in DTYPES or min(array.shape, default=0) < 0:
        return False
    vector = Vector(tuple(array.shape), array.dtype)
    start = header(vector.dtype, vector.shape)
    return len(array.data) == len(start) + vector.bytes and bytes(array.data[: len(start)]) == start


def _wrong(record: Mapping[str, Any], wanted: Table) -> list[str]:
    unknown = [name for name in record if name not in wanted]
    names = ", ".join([*list(wanted)[:NAMED], *["..."] * (len(wanted) > NAMED)]) or "none"
    wrong = [f"array {shown(name)} is none that is sent here (allowed: {names})" for name in unknown]
    for name, vector in wanted.items():
        if name not in record:
            wrong.append(f"array {name!r} is missing: it must be {vector}")
        elif (array := record[name]).dtype != vector.dtype or tuple(array.shape) != vector.shape:
            claim = f"{shown(array.dtype)} of shape {shown(tuple(array.shape))}"
            wrong.append(f"array {name!r} is {claim}: must be {vector}")
        elif not sound(array):
            size = len(header(vector.dtype, vector.shape)) + vector.bytes
            wrong.append(f"array {name!r} has {len(array.data)} bytes: must be {size}, NumPy's for {vector}")
    return wrong
