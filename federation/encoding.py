"""Quantisation of training messages: 16 bits, or 8 bits with error feedback for estimators.

Both halves of an algorithm compute in float32: vectors are rounded when sent and widened when received. A site thus
works with rounded numbers, while the server's state is exact. The final evaluation is sent exactly.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019, Algorithm 2; arXiv:1901.09847): the
rounding error of a vector is added to the same vector of the next message, so that the sums of the received and of the
exact vectors differ only by the last rounding error. (On the way down: for a site that takes part in every round.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from edelweiss.federation.schema import Shapes, Vector
from edelweiss.federation.wire import LARGEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from edelweiss.problems import Arrays

BLOCK = 256  # entries that share a scale; shorter vectors are sent exactly
SCALE = ".scale"  # suffix of the name of an 8-bit vector's scales
TOP = 127  # the code of a block's largest entry
LEAST = 1e-30  # a block without a larger entry is rounded to zero, because its scale would be subnormal
RESIDUAL = "residual/"  # prefix of the names of rounding errors in memories and snapshots
WRITTEN = {"bf16": "uint16", "float16": "float16"}  # NumPy has no bf16: its bits, the upper half of a float32's


@dataclass(frozen=True)
class Encoding:
    """The quantisation of a run: applies to one-dimensional float32 vectors of at least `BLOCK` entries."""

    wire: str = "float32"  # "float32", "bf16" or "float16"
    # vectors sent in 8 bits: each block of 256 entries has a scale, its largest absolute value / 127 (`NAME.scale`)
    coarse: frozenset[str] = frozenset()

    @property
    def exact(self) -> bool:
        """Whether all vectors are sent exactly."""
        return self.wire == "float32" and not self.coarse

    def shapes(self, meant: Shapes) -> Shapes:
        """Return the shapes of vectors on the wire, given the algorithm's."""
        written: Shapes = {}
        for name, vector in meant.items():
            if not _rounded(vector):
                written[name] = vector
            elif name in self.coarse:
                written[name] = Vector(vector.shape, "int8")
                written[name + SCALE] = Vector((math.ceil(vector.shape[0] / BLOCK),), "float32")
            else:
                written[name] = Vector(vector.shape, WRITTEN.get(self.wire, vector.dtype))
        return written

    def encode(self, arrays: Arrays, residual: Arrays, phase: str) -> tuple[Arrays, Arrays]:
        """Round vectors.

        Parameters
        ----------
        arrays : Arrays
            The exact vectors.
        residual : Arrays
            Rounding errors of earlier messages, by phase and name: ``"train/cx"``; missing ones are zero.
        phase : str
            The phase of the message.

        Returns
        -------
        tuple[Arrays, Arrays]
            The rounded vectors and the next residual.
        """
        if self.exact:
            return arrays, residual
        written: Arrays = {}
        residual = dict(residual)
        for name, vector in arrays.items():
            place = f"{phase}/{name}"
            if not _rounded(Vector.of(vector)):
                written[name] = vector
            elif name in self.coarse:
                before = residual.get(place)
                whole = vector if before is None or before.shape != vector.shape else vector + before
                codes, scale = quantised(whole)
                residual[place] = whole - dequantised(codes, scale)
                written |= {name: codes, name + SCALE: scale}
            elif self.wire == "bf16":
                written[name] = vector.to(torch.bfloat16).view(torch.uint16)
            else:
                written[name] = vector.half() if self.wire == "float16" else vector
        return written, residual

    def overflow(self, arrays: Arrays, magnitudes: Mapping[str, float]) -> str:
        """Describe finite vectors beyond the range of float16, with a fix; empty if there are none.

        ``magnitudes`` are those of `wire.magnitudes`, by name.
        """
        if self.wire != "float16":
            return ""  # bf16 has the range of float32
        most = torch.finfo(torch.float16).max
        sent = [name for name, v in arrays.items() if name not in self.coarse and _rounded(Vector.of(v))]
        large = {name: magnitudes[name] for name in sent if most < magnitudes[name] < math.inf}
        named = ", ".join(f"{name!r} (up to {size:.3g})" for name, size in large.items())
        return f'{named}: wire = "float16" ends at {most:g}, so take wire = "bf16" or "float32"' if large else ""


def decode(arrays: Arrays) -> Arrays:
    """Widen rounded vectors to float32; others are returned unchanged."""
    meant: Arrays = {}
    for name, vector in arrays.items():
        if name.endswith(SCALE) and _pair(arrays, name.removesuffix(SCALE)):
            continue
        if pair := _pair(arrays, name):
            vector = dequantised(*pair)
        elif vector.dtype == torch.uint16:
            vector = vector.view(torch.bfloat16).float()
        elif vector.dtype == torch.float16:
            vector = vector.float()
        meant[name] = vector
    return meant


def unfit(arrays: Arrays) -> str:
    """Describe codes and scales that `quantised` cannot have produced from finite numbers; empty if there are none."""
    for name in arrays:
        if pair := _pair(arrays, name):
            codes, scale = pair
            largest = _blocks(codes.short()).abs().amax(1)
            if not bool(((scale >= 0) & (scale <= LARGEST) & (largest == torch.where(scale > 0, TOP, 0))).all()):
                mine = f"arrays {name!r} and {name + SCALE!r} do not belong together"
                return f"{mine}: a block's largest entry must be {TOP} or -{TOP} and its scale above 0, or both 0"
    return ""


def quantised(vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of a vector, int8 from -127 to 127, and the scales of its blocks, float32.

    A block with NaN or infinity becomes all NaN.
    """
    blocks = _blocks(vector)
    largest = blocks.abs().amax(1)
    scale = torch.where(largest < LEAST, 0.0, largest / TOP)
    codes = (blocks / scale[:, None]).round_().nan_to_num_(0.0)
    codes.masked_fill_((scale == 0)[:, None], 0.0)
    return codes.to(torch.int8).flatten()[: len(vector)], scale


def dequantised(codes: Tensor, scale: Tensor) -> Tensor:
    """Return the vector encoded by codes and scales."""
    return (_blocks(codes.float()) * scale[:, None]).flatten()[: len(codes)]


def taken(memory: Arrays) -> Arrays:
    """Remove and return the rounding errors in a site's memory, which are hidden from algorithms."""
    names = [name for name in memory if name.startswith(RESIDUAL)]
    return {name.removeprefix(RESIDUAL): memory.pop(name) for name in names}


def remembered(residual: Arrays) -> Arrays:
    """Return rounding errors under their names in a site's memory."""
    return {RESIDUAL + name: vector for name, vector in residual.items()}


def _rounded(vector: Vector) -> bool:
    return vector.dtype == "float32" and len(vector.shape) == 1 and vector.shape[0] >= BLOCK


def _blocks(vector: Tensor) -> Tensor:
    return pad(vector, (0, -len(vector) % BLOCK)).reshape(-1, BLOCK)


def _pair(arrays: Arrays, name: str) -> tuple[Tensor, Tensor] | None:
    """Return codes and scales of a vector sent in 8 bits; None for others."""
    codes, scale = arrays.get(name), arrays.get(name + SCALE)
    if codes is None or scale is None or codes.dtype != torch.int8 or scale.dtype != torch.float32 or codes.ndim != 1:
        return None
    return (codes, scale) if scale.shape == (math.ceil(len(codes) / BLOCK),) else None
