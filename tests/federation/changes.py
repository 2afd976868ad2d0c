"""Everything that can be wrong with the content of a message, one thing at a time."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from edelweiss.federation import unpack

Change = tuple[str, Callable[[RecordDict], None]]
"""What is done to a content, in words, and what does it in place."""

NAMES = ("../../evil", "\x1b[31mred\x1b[0m", "a" * 10_000, "nul\0", "two\nlines", "\u202edesrever")
NUMBERS = (1e18, -1e308, 1e308, math.nan, math.inf, -math.inf)
OTHERS: tuple[Any, ...] = (b"7", [7], [0.5] * 7, [], ["a", "b"], True, [math.nan], [[1]], [1e30])
FLOATS = (math.nan, math.inf, -math.inf, 1e30)
BAD: dict[str, tuple[float, ...]] = {  # what a vector may not hold; of 16 bits those of NaN, infinity and 1e30 in bf16
    **dict.fromkeys(("float32", "float64"), FLOATS),
    "float16": FLOATS[:3],
    "uint16": (0x7FC0, 0x7F80, 0xFF80, 0x714A),
    **dict.fromkeys(("int64", "int32"), (-1, 2**30)),
    "int8": (-128,),
}
KEPT_BACK = ("class-counts", "held-out-counts")  # by a site with few of a class: it tells none
FINE = {"patients": [7], "notes": ["a", "b"], "evaluate": True}  # what may be told, and what asked: to evaluate a round
DTYPES = ("float64", "float32", "float16", "int64", "int8", "bool", "complex64", "U4")


def copied(content: RecordDict) -> RecordDict:
    """Return a content whose records may be changed."""
    return RecordDict({name: type(record)(dict(record)) for name, record in content.items()})


def packed(values: np.ndarray, **claims: Any) -> Array:
    """Return values as Flower carries them, with whatever else the array is to say of itself."""
    out = io.BytesIO()
    np.save(out, values, allow_pickle=False)
    told = {"dtype": str(values.dtype), "shape": tuple(values.shape), "stype": "numpy.ndarray", "data": out.getvalue()}
    return Array(**(told | claims))


def arrays(content: RecordDict) -> Iterator[Change]:
    """Yield what can be wrong with one array."""
    for name, values in unpack(content.array_records.get("arrays", ArrayRecord())).items():
        yield f"{name} is missing", _without("arrays", name)
        yield f"{name} has another name", _renamed("arrays", name)
        for what, array in _arrays(values.numpy()):
            yield f"{name} {what}", _with("arrays", name, array)


def _arrays(values: np.ndarray) -> Iterator[tuple[str, Array]]:
    flat, kind = values.ravel(), values.dtype
    shapes = {
        "is one number": np.zeros(1 if flat.size != 1 else 2),
        "is a column": values[..., None],
        "is a row": values[None],
        "has one more": np.append(flat, flat[-1:] if flat.size else [0]),
        "is there twice": np.concatenate([flat, flat, [0]]),
    }
    if flat.size:
        shapes |= {"is empty": flat[:0], "has one less": flat[:-1], "is a scalar": flat[0]}
    for what, other in shapes.items():
        yield what, packed(np.asarray(other).astype(kind))
    with np.errstate(all="ignore"):
        for dtype in DTYPES:
            if dtype != str(kind):
                yield f"is {dtype}", packed(values.astype(dtype))
    yield "says a dtype that there is not", packed(values, dtype="whatever")
    yield "says a dtype that NumPy lacks", packed(values, dtype="bfloat16")
    yield "says object", packed(values, dtype="object")
    yield "says V1000000000", packed(values, dtype="V1000000000")
    yield "says a shape of 10^12", packed(values, shape=(10**12,))
    yield "says a shape of many", packed(values, shape=(2**40, 2**40))
    yield "says a negative shape", packed(values, shape=(-1,))
    yield "has a torn header", packed(values, data=b"\x93NUMPY")
    yield "has no bytes", packed(values, data=b"")
    yield "has 10 MB too many", packed(values, data=packed(values).data + b"\0" * 10**7)
    yield "has another header", packed(values, data=packed(values.astype(complex)).data[:64] + packed(values).data[64:])
    yield "is serialised otherwise", packed(values, stype="pickle")
    for number in BAD.get(str(kind), ()) if flat.size else ():
        other = flat.copy()
        other[-1] = number
        yield f"ends with {number}", packed(other.reshape(values.shape))


def records(content: RecordDict) -> Iterator[Change]:
    """Yield what can be wrong with the records, and what there is beside what is sent."""
    for name in content:
        yield f"no record {name}", _dropped(name)
        yield f"record {name} has another name", lambda c, n=name: c.__setitem__("other", c.pop(n))
        for other in (ArrayRecord(), MetricRecord(), ConfigRecord()):
            if type(other) is not type(content[name]):
                yield f"record {name} is a {type(other).__name__}", lambda c, n=name, o=other: c.__setitem__(n, o)
    large = packed(np.zeros(2_500_000, np.float32))
    yield "a further record of 10 MB", lambda c: c.__setitem__("more", ArrayRecord({"extra": large}))
    yield "a further record", lambda c: c.__setitem__("more", ConfigRecord({"a": 1}))
    if "arrays" in content.array_records:
        for name, array in {"extra": large, "\x1b[31m": packed(np.zeros(1)), "buffers": packed(np.ones(3))}.items():
            yield f"a further array {name!r}", _with("arrays", name, array)
        yield "a thousand further arrays", lambda c: c["arrays"].update({f"more-{i}": large for i in range(1000)})


def values(content: RecordDict, *names: str) -> Iterator[Change]:
    """Yield what can be wrong with the numbers and words of these records."""
    for record in names:
        for key, value in content[record].items() if record in content else ():
            yield f"{record}: {key} is missing", _without(record, key)
            yield f"{record}: {key} has another name", _renamed(record, key)
            for other in _others(value):
                if not _same(other, value) and not _may_be(key, other):
                    yield f"{record}: {key} is {_short(other)}", _with(record, key, other)
        if record in content:
            yield f"{record}: a further key", _with(record, "further", 1)
            yield f"{record}: a further key with a name", _with(record, "\x1b[2J", "\x1b[2J")
            yield f"{record}: a thousand keys", lambda c, r=record: c[r].update({f"more-{i}": i for i in range(1000)})


def _others(value: object) -> Iterator[Any]:
    yield from OTHERS
    if isinstance(value, str):
        yield from (7, math.nan, *NAMES)
        return
    yield "7"
    if not isinstance(value, list):
        yield from NUMBERS
        if isinstance(value, int):
            yield from (-5, 2**63 - 1, 0.5)
    elif value:
        yield from (value[:-1], [*value, value[0]], value * 1000)
        if not isinstance(value[0], str):
            yield from ([number, *value[1:]] for number in (-1e300, math.nan, math.inf, 1e300))
        if isinstance(value[0], int):
            yield [-5, *value[1:]]
            yield [0 for _ in value]


def _may_be(key: str, other: Any) -> bool:
    if key == "cuts" and isinstance(other, list) and other:  # a run may cut wherever it likes, in ascending order
        numbers = all(type(cut) in (int, float) and abs(cut) < 3.4e38 for cut in other)
        return numbers and all(a < b for a, b in pairwise(other))
    return (other == [] and key in KEPT_BACK) or bool(other == FINE.get(key))


def _same(other: object, value: object) -> bool:
    return type(other) is type(value) and bool(other == value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 40 else f"{text[:40]}... ({len(text)})"


# Flower's records check what is put into them, here as little as after a message has come from elsewhere.


def _with(record: str, key: str, value: object) -> Callable[[RecordDict], None]:
    return lambda content: content[record]._data.__setitem__(key, value)  # type: ignore[union-attr]


def _without(record: str, key: str) -> Callable[[RecordDict], None]:
    return lambda content: content[record].__delitem__(key)


def _renamed(record: str, key: str) -> Callable[[RecordDict], None]:
    return lambda content: content[record].__setitem__("other", content[record].pop(key))  # type: ignore[call-overload]


def _dropped(name: str) -> Callable[[RecordDict], None]:
    return lambda content: content.__delitem__(name)
