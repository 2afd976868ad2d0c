"""What secure aggregation lets the coordinator see: sums over all sites, exact, and nothing of one site.

A site's reply is one vector of integers modulo 2^64, laid out in parts (`Layout`). A number v with the site's weight w
becomes the nearest integer to 2^S w v, with S as large as the sum of all sites allows::

    S = 62 - ⌈log2(n · most)⌉,   most ≥ |w v|

Counts are sent as they are. The last number of each reply is 1, so that a sum over all n sites ends with n: one to
which a site added anything else, because it could not answer, ends otherwise and is not read.

Sums are the same with masks (`federation.masks`) and without, in a simulation: integers have no rounding and no order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord

from edelweiss.common import record_in
from edelweiss.federation.errors import BadReplyError, RunError
from edelweiss.federation.seals import joined
from edelweiss.federation.wire import header, record
from edelweiss.problems.histogram import Histogram
from edelweiss.problems.metrics import BINNED, metric

if TYPE_CHECKING:
    from flwr.app import Message
    from numpy.typing import NDArray

    from edelweiss.federation.schema import Shapes
    from edelweiss.federation.sites import Site
    from edelweiss.problems import Metrics

    Integers = NDArray[np.uint64]
    Values = Mapping[str, tuple[Any, float]]
    """A site's numbers by part, each with the weight that they enter the sum with."""

SUM, INTEGERS = "sum", "integers"  # the record of a reply, and the vector in it
LARGEST = 2.0**10  # B: of a number in a sum
MOST_WEIGHT = 2**20  # W: of a site that is weighted by its samples
CHUNK = 2**16  # numbers at a time: they fit into the cache


class SumError(RunError):
    """A sum that cannot be read."""


@dataclass(frozen=True)
class Part:
    """Numbers of one kind in a sum."""

    name: str
    shape: tuple[int, ...] = ()
    most: float = 0.0  # the largest |w v| of a site; 0: counts, of at least 0

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The parts of a sum over so many sites, in their order."""

    sites: int
    parts: tuple[Part, ...]

    @cached_property
    def length(self) -> int:
        """How many integers, with the last, by which a sum is known to be whole."""
        return sum(part.size for part in self.parts) + 1

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of what is where."""
        rows = (joined(part.name, repr(part.shape), repr(part.most)) for part in self.parts)
        return hashlib.sha256(joined(self.sites, *rows)).digest()

    @property
    def most_count(self) -> int:
        """The largest count of a site: exact as float64, and in a sum over all within 62 bits."""
        return min(2**53, 2**62 // self.sites)

    def scale(self, part: Part) -> float:
        """Return 2^S of a part; 1 of counts."""
        return 2.0 ** (62 - math.ceil(math.log2(self.sites * part.most))) if part.most else 1.0

    def encode(self, values: Values) -> Integers:
        """Return a site's numbers as integers, shape (length,).

        Raises
        ------
        BadReplyError
            For a number that is NaN, infinite or too large, or a count that cannot be one.
        """
        out = np.empty(self.length, np.uint64)
        for part, begin in zip(self.parts, self._begins, strict=False):
            numbers, weight = values[part.name]
            flat, scale = np.asarray(numbers).reshape(-1), self.scale(part)
            if flat.size != part.size:
                raise BadReplyError(f"{part.name} has {flat.size} numbers: must have {part.size}")
            for at in range(0, part.size, CHUNK):
                own = flat[at : at + CHUNK].astype(np.float64)
                own *= weight
                if not np.isfinite(own).all():
                    raise BadReplyError(f"NaN or infinity in {part.name}")
                if part.most:
                    if max(-own.min(), own.max()) > part.most:
                        raise BadReplyError(
                            f"{part.name} has a number beyond {part.most / weight:,.0f}, the largest in a sum"
                        )
                    own *= scale
                elif own.min() < 0 or own.max() > self.most_count:
                    raise BadReplyError(f"{part.name} cannot be summed: counts are from 0 to {self.most_count:,}")
                out[begin + at : begin + at + len(own)] = np.rint(own, out=own).astype(np.int64).view(np.uint64)
        out[-1] = 1
        return out

    def decode(self, total: Integers) -> dict[str, NDArray[Any]]:
        """Return the sums by part: float64, counts int64.

        Raises
        ------
        SumError
            If a site put something else in place of its answer.
        """
        if int(total[-1]) != self.sites:
            raise SumError(
                "the sum over the sites cannot be read: at least one could not or would not answer, and nobody can "
                "tell which but its operator, by its log. Mend that, then go on with resume, and a new ticket if the "
                "run has one"
            )
        signed, found = total.view(np.int64), {}
        for part, begin in zip(self.parts, self._begins, strict=False):
            own = signed[begin : begin + part.size].reshape(part.shape)
            if not part.most and part.size and (own.min() < 0 or own.max() > self.sites * self.most_count):
                raise SumError(f"the sum of {part.name} over the sites is no count: a site sent what cannot be")
            found[part.name] = own / self.scale(part) if part.most else own.copy()
        return found

    @cached_property
    def _begins(self) -> list[int]:
        return [0, *accumulate(part.size for part in self.parts)]

    def read(self, site: Site, question: Message, answer: Message) -> Integers:
        """Read a reply; BadReplyError if it is no vector of this length."""
        content = answer.content
        arrays = record_in(content, SUM, ArrayRecord)
        if {*content} != {SUM} or {*arrays} != {INTEGERS}:
            raise BadReplyError(f"it must have the record {SUM!r} with {INTEGERS!r}, and nothing else")
        array = arrays[INTEGERS]
        head = header("uint64", (self.length,))
        if (array.dtype, tuple(array.shape)) != ("uint64", (self.length,)) or array.data[: len(head)] != head:
            raise BadReplyError(f"its sum has {array.dtype} {tuple(array.shape)}: must be uint64 ({self.length},)")
        if len(array.data) != len(head) + 8 * self.length:
            raise BadReplyError(f"its sum has {len(array.data)} bytes: must have {len(head) + 8 * self.length}")
        return np.frombuffer(array.data, "<u8", self.length, offset=len(head))


def pack(integers: Integers) -> ArrayRecord:
    """Write a reply's vector."""
    array = Array.__new__(Array)
    shape = integers.shape
    data = b"".join((header("uint64", shape), np.ascontiguousarray(integers, "<u8").data.cast("B")))
    array.__dict__.update(dtype="uint64", shape=shape, stype="numpy.ndarray", data=data)
    return record(ArrayRecord, {INTEGERS: array})


# ---------------------------------------------------------------------- what is summed of a round


def vectors(shapes: Shapes, most_weight: int) -> tuple[Part, ...]:
    """Return the parts of a reply's vectors; integers among them are multiplied by the weight and stay integers."""
    return (
        *(
            Part(f"vector {name}", one.shape, 0.0 if one.dtype == "int64" else LARGEST * most_weight)
            for name, one in shapes.items()
        ),
        *(Part(name) for name in ("weight", "gradients", "samples")),
    )


# ---------------------------------------------------------------------- what is summed of an evaluation

MANTISSA, LOWEST, HIGHEST = 5, -14, 10  # bits of a score that tell bins apart; exponents of 2 where bins begin and end
SHIFT = 23 - MANTISSA
FIRST, SPAN = (127 + LOWEST) << MANTISSA, (HIGHEST - LOWEST) << MANTISSA
BINS = 2 * SPAN + 1
"""Bins of a histogram that is summed: the same for all sites and models, each 1/32 of an octave of scores wide."""


def counted(data: bytes) -> NDArray[np.int64]:
    """Return the counts of a packed histogram by the bins of sums, shape (`BINS`,)."""
    own = Histogram.unpacked(data)
    steps = np.clip((np.abs(own.bins) >> SHIFT) - FIRST + 1, 0, SPAN)
    counts = np.zeros(BINS, np.int64)
    np.add.at(counts, SPAN + np.sign(own.bins) * steps, own.counts)
    return counts


def as_histogram(counts: NDArray[np.int64]) -> Histogram:
    """Return summed counts as a histogram, with each bin's samples in its middle."""
    occupied = np.flatnonzero(counts)
    steps = occupied - SPAN
    middles = ((np.abs(steps) + FIRST - 1) << SHIFT) + (1 << (SHIFT - 1))
    return Histogram(np.where(steps == 0, 0, np.sign(steps) * middles).astype(np.int64), counts[occupied])


def evaluation(example: Metrics) -> tuple[Part, ...]:
    """Return the parts of an evaluation with the metrics of an example.

    Histograms and counts; of each other metric the sum over the sites, weighted by their samples, with these weights.
    """
    parts: list[Part] = []
    for name, value in example.items():
        kind = metric(name).pooled
        if isinstance(value, bytes):
            parts.append(Part(f"metric {name}", (BINS,)))
        elif isinstance(value, list):
            parts.append(Part(f"metric {name}", (len(value),)))
        elif kind == "sum":
            parts.append(Part(f"metric {name}"))
        elif kind != "most":
            parts += [Part(f"metric {name}", most=LARGEST * MOST_WEIGHT), Part(f"weight {name}")]
    return tuple(parts)


def of_evaluation(found: Metrics, example: Metrics) -> dict[str, tuple[Any, float]]:
    """Return a site's evaluation by part; of an empty one zeros."""
    values: dict[str, tuple[Any, float]] = {}
    for part in evaluation(example):
        kind, _, name = part.name.partition(" ")
        value = found.get(name)
        weight = 0.0 if value is None or _undefined(value) else _weight(found, name)
        if kind == "weight":
            values[part.name] = weight, 1.0
        elif part.most:
            values[part.name] = (value, weight) if weight else (0.0, 0.0)
        elif isinstance(value, bytes):
            values[part.name] = counted(value), 1.0
        else:
            values[part.name] = (np.zeros(part.shape) if value is None else value), 1.0
    return values


def metrics_of(sums: Mapping[str, NDArray[Any]], example: Metrics, *, common: bool = True) -> dict[str, Any]:
    """Return the evaluation of all sites as if they were one; empty without samples.

    Of a ``common`` model the order within a bin is unknown. Where each site has a model
    of its own nobody orders the scores of several, and a ranking is the mean of the sites'.
    """
    found: dict[str, Any] = {}
    for name, value in example.items():
        kind = metric(name).pooled
        if kind == "most":
            found[name] = BINNED if common else 1
            continue
        own = sums[f"metric {name}"]
        if isinstance(value, bytes):
            found[name] = as_histogram(own).packed()
        elif isinstance(value, list):
            found[name] = own.tolist()
        elif kind == "sum":
            found[name] = int(own)
        else:
            weight = int(sums[f"weight {name}"])
            found[name] = float(own) / weight if weight else math.nan
    return found if found.get("n", 1) else {}


def _undefined(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _weight(found: Metrics, name: str) -> float:
    """Return the weight of a metric: the samples, as in `problems.pooling.pool`; of a ranking 1, as over sites."""
    return 1.0 if metric(name).pooled in ("scores", "classes") else float(found.get("n", 1))  # type: ignore[arg-type]
