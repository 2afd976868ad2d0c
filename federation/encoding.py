"""How the vectors of a training message are written: exactly, in 16 bits, and estimators in 8 with error feedback.

Both halves of an algorithm compute in float32: what is sent is rounded here on its way out, and widened here on its way
in. So a site works from the numbers that it received, while the server's state is not rounded. The last evaluation, and
so the model that a run returns, is sent exactly.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019, Algorithm 2; arXiv:1901.09847): what the
rounding of a vector took away is added to the same vector of the next message. So the sum of what was received differs
from the sum of what was meant by the last rounding error alone, however many messages there were. (On the way down that
is so for a site that takes part in every round.)
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

BLOCK = 256  # entries that share a scale; a vector of fewer is sent exactly: there is little to save
SCALE = ".scale"  # behind the name of a vector in 8 bits: the name of its scales
TOP = 127  # the code of the largest entry of a block
LEAST = 1e-30  # a block of nothing larger is zero: its scale would be no ordinary number
RESIDUAL = "residual/"  # before the names of rounding errors, in a site's memory and in a snapshot
WRITTEN = {"bf16": "uint16", "float16": "float16"}  # NumPy has no bf16: its bits, the upper half of a float32's


@dataclass(frozen=True)
class Encoding:
    """What is rounded on the wire: of the float32 vectors with one axis those of `BLOCK` entries or more.

    Parameters
    ----------
    wire : str
        ``"float32"``, ``"bf16"`` or ``"float16"``.
    coarse : frozenset of str
        Names of the vectors that are sent in 8 bits instead: a block of 256 entries has a scale, a 127th of its largest
        absolute value, which goes along as ``NAME.scale``.
    """

    wire: str = "float32"
    coarse: frozenset[str] = frozenset()

    @property
    def exact(self) -> bool:
        """Whether nothing is rounded."""
        return self.wire == "float32" and not self.coarse

    def shapes(self, meant: Shapes) -> Shapes:
        """Return the shapes of vectors on the wire, given those that an algorithm has."""
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
            As they are meant.
        residual : Arrays
            What earlier roundings took away, by phase and name: ``"train/cx"``. What is lost counts as zero.
        phase : str
            The phase of the message; in each a name stands for one quantity.

        Returns
        -------
        tuple[Arrays, Arrays]
            What to write, and the next residual.
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
        """Return which finite vectors float16 has no numbers for, and what to do; empty: it has.

        ``magnitudes`` are those of `wire.magnitudes`, by name.
        """
        if self.wire != "float16":
            return ""  # bf16 reaches as far as float32
        most = torch.finfo(torch.float16).max
        sent = [name for name, v in arrays.items() if name not in self.coarse and _rounded(Vector.of(v))]
        large = {name: magnitudes[name] for name in sent if most < magnitudes[name] < math.inf}
        named = ", ".join(f"{name!r} (up to {size:.3g})" for name, size in large.items())
        return f'{named}: wire = "float16" ends at {most:g}, so take wire = "bf16" or "float32"' if large else ""


def decode(arrays: Arrays) -> Arrays:
    """Return vectors as an algorithm has them; those that were not rounded as they are."""
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
    """Return which codes and scales are none that `quantised` makes of finite numbers; empty: all are."""
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

    A block that holds NaN or infinity is NaN as a whole when it is read.
    """
    blocks = _blocks(vector)
    largest = blocks.abs().amax(1)
    scale = torch.where(largest < LEAST, 0.0, largest / TOP)
    codes = (blocks / scale[:, None]).round_().nan_to_num_(0.0)
    codes.masked_fill_((scale == 0)[:, None], 0.0)
    return codes.to(torch.int8).flatten()[: len(vector)], scale


def dequantised(codes: Tensor, scale: Tensor) -> Tensor:
    """Return the vector that codes and scales stand for."""
    return (_blocks(codes.float()) * scale[:, None]).flatten()[: len(codes)]


def taken(memory: Arrays) -> Arrays:
    """Take the rounding errors out of what a site remembers, which algorithms do not see."""
    names = [name for name in memory if name.startswith(RESIDUAL)]
    return {name.removeprefix(RESIDUAL): memory.pop(name) for name in names}


def remembered(residual: Arrays) -> Arrays:
    """Return rounding errors as a site remembers them."""
    return {RESIDUAL + name: vector for name, vector in residual.items()}


def _rounded(vector: Vector) -> bool:
    return vector.dtype == "float32" and len(vector.shape) == 1 and vector.shape[0] >= BLOCK


def _blocks(vector: Tensor) -> Tensor:
    return pad(vector, (0, -len(vector) % BLOCK)).reshape(-1, BLOCK)


def _pair(arrays: Arrays, name: str) -> tuple[Tensor, Tensor] | None:
    """Return the codes and the scales of a vector that was sent in 8 bits; None if it was not."""
    codes, scale = arrays.get(name), arrays.get(name + SCALE)
    if codes is None or scale is None or codes.dtype != torch.int8 or scale.dtype != torch.float32 or codes.ndim != 1:
        return None
    return (codes, scale) if scale.shape == (math.ceil(len(codes) / BLOCK),) else None
