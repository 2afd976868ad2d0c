"""Shapes and types of a message's vectors, checked before any value is read."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from edelweiss.common.schema import NAMED, in_a_line
from edelweiss.common.suggest import shown
from edelweiss.federation.wire import NAMES, header

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flwr.app import Array
    from torch import Tensor

    from edelweiss.problems import Arrays


DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "float16", "uint16", "int8")


class Vector(NamedTuple):
    """The shape and type of a vector."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor) -> Vector:
        """Return the shape and type of a tensor."""
        return cls(tuple(tensor.shape), NAMES[tensor.dtype])

    @property
    def bytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


Shapes = dict[str, Vector]
"""The shapes and types of a message's vectors, by name."""


def shapes_of(arrays: Arrays) -> Shapes:
    """Return the shapes and types of vectors."""
    return {name: Vector(tuple(v.shape), NAMES[v.dtype]) for name, v in arrays.items()}


def misfits(record: Mapping[str, Any], allowed: Iterable[Shapes]) -> str:
    """Describe how arrays differ from the closest of the allowed shapes; empty if they match one.

    Parameters
    ----------
    record : mapping
        Flower's ``ArrayRecord``; no values are read.
    allowed : iterable of Shapes
        At least one; consumed until one matches.
    """
    nearest: list[str] | None = None
    arrays = dict(record.items())  # a look-up in Flower's own mapping takes ten times as long
    for one in allowed:
        if not (wrong := _wrong(arrays, one)):
            return ""
        if nearest is None or len(wrong) < len(nearest):
            nearest = wrong
    return in_a_line(nearest or [])


def sound(array: Array) -> bool:
    """Whether an array's bytes match its declared shape and type, and algorithms use that type."""
    if array.dtype not in DTYPES or min(array.shape, default=0) < 0:
        return False
    return not _wrong({"": array}, {"": Vector(tuple(array.shape), array.dtype)})


@lru_cache(maxsize=1024)
def _written(vector: Vector) -> tuple[bytes, int]:
    """Return the first bytes of a serialised vector, and its length in bytes."""
    start = header(vector.dtype, vector.shape)
    return start, len(start) + vector.bytes


def _wrong(record: Mapping[str, Any], wanted: Shapes) -> list[str]:
    wrong: list[str] = []
    if unknown := record.keys() - wanted:
        names = ", ".join([*list(wanted)[:NAMED], *["..."] * (len(wanted) > NAMED)]) or "none"
        listed = [name for name in record if name in unknown]
        wrong = [f"array {shown(name)} is not expected here (allowed: {names})" for name in listed]
    for name, vector in wanted.items():
        start, length = _written(vector)
        if name not in record:
            wrong.append(f"array {name!r} is missing: it must be {vector}")
        elif (array := record[name]).dtype != vector.dtype or tuple(array.shape) != vector.shape:
            claim = f"{shown(array.dtype)} of shape {shown(tuple(array.shape))}"
            wrong.append(f"array {name!r} is {claim}: must be {vector}")
        elif array.stype != "numpy.ndarray" or len(array.data) != length or bytes(array.data[: len(start)]) != start:
            wrong.append(f"array {name!r} has {len(array.data)} bytes: must be {length}, NumPy's for {vector}")
    return wrong
