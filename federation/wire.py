"""Serialisation of named vectors as Flower ``Array`` objects, in NumPy's file format."""

from __future__ import annotations

import io
import math
import time
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from flwr.app import DEFAULT_TTL, Array, ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from edelweiss.problems import Arrays

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)

NAMES = {each: str(each).removeprefix("torch.") for each in vars(torch).values() if isinstance(each, torch.dtype)}
"""The names of PyTorch's types, which are NumPy's."""

LARGEST = 1e18  # the square of a larger number nearly overflows float32
_EMPTY: dict[type, Any] = {kind: kind() for kind in (ArrayRecord, ConfigRecord, MetricRecord, RecordDict)}

# Received bytes are read in place and must not be written to (see `unpack`), so this warning is moot.
warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writable", category=UserWarning)


@lru_cache(maxsize=1024)
def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of NumPy's file format."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
    return out.getvalue()


@lru_cache(maxsize=1024)
def _form(dtype: str, shape: tuple[int, ...]) -> tuple[np.dtype[Any], int, int]:
    """Return a vector's NumPy type, number of entries, and bytes."""
    kind, count = np.dtype(dtype), math.prod(shape)
    return kind, count, count * kind.itemsize


def record(kind: type[R], values: Mapping[str, Any]) -> R:
    """Make a Flower record without Flower's check of each value, which dominates the cost of a small message."""
    made = kind.__new__(kind)
    vars(made).update(vars(_EMPTY[kind]), _data=dict(values))
    return made


def question(content: RecordDict, node: int, kind: str) -> Message:
    """Make a message to a node with the metadata that Flower gives it."""
    return _message(
        content,
        {},
        _run_id=TaskIdentity.run_id,
        _message_id="",
        _src_node_id=TaskIdentity.node_id,
        _dst_node_id=node,
        _src_task_id=TaskIdentity.task_id,
        _dst_task_id=None,
        _reply_to_message_id="",
        _group_id="",
        _created_at=time.time(),
        _ttl=DEFAULT_TTL,
        _message_type=kind,
        _delivered_at="",
    )


def reply(content: RecordDict, question: Message) -> Message:
    """Make a reply with the metadata that Flower gives it."""
    asked, now = vars(question.metadata), time.time()
    return _message(
        content,
        asked,
        _message_id="",
        _src_node_id=asked["_dst_node_id"],
        _dst_node_id=asked["_src_node_id"],
        _src_task_id=asked["_dst_task_id"],
        _dst_task_id=asked["_src_task_id"],
        _reply_to_message_id=asked["_message_id"],
        _created_at=now,
        _ttl=asked["_created_at"] + asked["_ttl"] - now,
        _delivered_at="",
    )


def _message(content: RecordDict, common: Mapping[str, Any], **own: Any) -> Message:
    """Make a message without Flower's constructor.

    That checks its arguments, which takes longer than everything else that is done to a small message.
    """
    metadata, made = Metadata.__new__(Metadata), Message.__new__(Message)
    vars(metadata).update(common, **own)
    vars(made).update(_metadata=metadata, _content=content, _error=None)
    return made


def pack(arrays: Arrays) -> ArrayRecord:
    """Serialise named vectors; ``packed[name].numpy()`` reads one."""
    packed = {}
    for name, vector in arrays.items():
        values = vector.contiguous().numpy(force=True)
        shape, dtype = values.shape, NAMES[vector.dtype]
        data = b"".join((header(dtype, shape), values))  # type: ignore[arg-type]  # NumPy's arrays are buffers
        packed[name] = array = Array.__new__(Array)
        array.__dict__.update(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)
    return record(ArrayRecord, packed)


def unpack(packed: Mapping[str, Array], device: torch.device | str = "cpu") -> Arrays:
    """Deserialise named vectors without a copy; on the CPU they are read-only views of the message."""
    arrays: Arrays = {}
    for name, array in packed.items():
        kind, count, size = _form(array.dtype, array.shape)
        values = np.frombuffer(array.data, kind, count, offset=len(array.data) - size)
        arrays[name] = torch.from_numpy(values.reshape(array.shape)).to(device)
    return arrays


def beyond(arrays: Arrays, largest: float = LARGEST) -> list[str]:
    """Return the names of the float vectors with an entry that is NaN or larger than this."""
    return [name for name, most in magnitudes(arrays).items() if not most <= largest]


def magnitudes(arrays: Arrays) -> dict[str, float]:
    """Return the largest absolute value of each float vector that is not empty."""
    return {name: magnitude(v) for name, v in arrays.items() if v.is_floating_point() and v.numel()}


def magnitude(vector: Tensor) -> float:
    """Return the largest absolute value; NaN if the vector has a NaN."""
    low, high = torch.aminmax(vector)
    least, most = low.item(), high.item()
    return max(-least, most) if least == least else math.nan


def not_finite(arrays: Arrays) -> list[str]:
    """Return the names of the vectors with NaN or infinity."""
    return beyond(arrays, torch.finfo(torch.float64).max)


def size(packed: Mapping[str, Array]) -> int:
    """Return the bytes of the vectors' values: the communication that papers count."""
    return sum([_form(array.dtype, array.shape)[2] for array in packed.values()])
