"""Samples: rows of a shared pair of tensors, and the moments that standardise them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import torch
from torch import Tensor

from edelweiss.common import PROCESS_CACHE
from edelweiss.datasets.augmentation import Changes
from edelweiss.datasets.memory_mapped import gather, in_blocks

_SHARE = 0.5  # of a GPU's free memory that samples may take


@dataclass(frozen=True, eq=False)
class Samples:
    """A set of rows of a shared pair of tensors, without copies per site.

    Parameters
    ----------
    inputs
        Shape (N, F) float32 for a table, NaN where a value is missing; (N, C, H, W) uint8 for images.
    labels
        Shape (N,) int64; with several labels (N, L), `datasets.labels.UNKNOWN` where unknown.
    rows
        Shape (n,) int64: the rows of this set among the N.
    shift, scale
        Standardisation, broadcastable over one input: (F,) for a table, (C, 1, 1) for images.
    augment
        Draws what happens to each of so many images; None: they stay as they are.
    seen
        Called with the positions of each batch that is gathered; None: nobody notes them.

    Notes
    -----
    Batches are made on the labels' device. Inputs that are too many for it stay on the CPU, with the rows.
    """

    inputs: Tensor
    labels: Tensor
    rows: Tensor
    shift: Tensor | None = None
    scale: Tensor | None = None
    augment: Callable[[int], Changes] | None = None
    seen: Callable[[Tensor], None] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.inputs.shape[1:])

    def targets(self) -> Tensor:
        """Return the labels of the rows, shape (n,) or (n, L) int64."""
        return self.labels.index_select(0, self.rows.to(self.labels.device))

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Gather a batch.

        Parameters
        ----------
        index
            Shape (b,) int64: indices into the rows, each in [0, n).

        Returns
        -------
        inputs
            Shape (b, *shape) float32, standardised as (v - shift) / scale. Missing values, and augmented pixels from
            outside an image, are then 0, the training mean.
        labels
            Shape (b,) or (b, L) int64.
        """
        if self.seen:
            self.seen(index)
        rows, device = self.rows[index.to(self.rows.device)], self.labels.device
        # index_select of whole rows is a copy (so in-place is safe), and far faster than inputs[rows].
        inputs = gather(self.inputs, rows)
        if inputs.device != device:  # as bytes, from pinned memory, so that the copy is asynchronous
            inputs = inputs.pin_memory().to(device, non_blocking=True)
        inputs = inputs.to(torch.float32)
        changes = self.augment(len(rows)) if self.augment else None
        if changes:
            inputs = changes.brighten(inputs)
        if self.shift is not None:
            inputs.sub_(self.shift)
        if self.scale is not None:
            inputs.div_(self.scale)
        if self.inputs.is_floating_point():
            inputs.nan_to_num_(0.0)
        if changes:
            inputs = changes.warp(inputs)
        return inputs, self.labels.index_select(0, rows.to(device))

    def standardised(self, shift: Tensor, scale: Tensor) -> Samples:
        """Return the rows with a shift and a scale, flat vectors per feature or channel."""
        form = len(self.shape), self.labels.device
        return replace(self, shift=_along(shift, *form), scale=_along(scale, *form))

    def to(self, device: torch.device | str) -> Samples:
        """Return the samples on a device.

        All sites of a process share the tensors there as well. If they would take more than half of a GPU's free
        memory, only the rows of this set are copied; if these are too many, they are copied batch by batch.
        """
        device = torch.device(device)
        inputs, labels, rows = self.inputs, self.labels, self.rows
        if inputs.device == labels.device == rows.device == device:
            return self
        if device.type in ("cpu", inputs.device.type):
            inputs, rows = inputs.to(device), rows.to(device)
        elif (shared := _shared(inputs, device)) is not None:
            inputs, rows = shared, rows.to(device)
        elif len(rows) * prod(self.shape) * inputs.itemsize <= _SHARE * _free(device):
            inputs = _copied(inputs, rows, device)
            labels, rows = self.targets(), torch.arange(len(rows), device=device)
        return replace(
            self,
            inputs=inputs,
            labels=labels.to(device),
            rows=rows,
            shift=None if self.shift is None else self.shift.to(device),
            scale=None if self.scale is None else self.scale.to(device),
        )


@PROCESS_CACHE.keeps(8)
def _along(numbers: Tensor, axes: int, device: torch.device) -> Tensor:
    """Reshape numbers per feature or channel for broadcasting; shared between sites."""
    return numbers.reshape((-1,) + (1,) * (axes - 1)).to(device)


@PROCESS_CACHE.keeps(4)
def _shared(inputs: Tensor, device: torch.device) -> Tensor | None:
    """Return inputs on a device, once per process; None if they would take too much of its memory."""
    if inputs.nbytes > _SHARE * _free(device):
        return None
    return _copied(inputs, torch.arange(len(inputs)), device)


def _copied(inputs: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """Copy rows of inputs to a device block by block, since they may be in a file."""
    copy = torch.empty(len(rows), *inputs.shape[1:], dtype=inputs.dtype, device=device)
    done = 0
    for block in in_blocks(inputs, rows):
        copy[done : done + len(block)] = block
        done += len(block)
    return copy


def _free(device: torch.device) -> float:
    """Return the free bytes of a device; infinite for a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else inf


def moments(samples: Samples) -> tuple[list[float], list[float], list[float]]:
    """Compute count, sum and sum of squares of the raw values, which are additive over sites.

    Returns
    -------
    count, total, squares
        One number per feature of a table (missing values are left out) or per channel of images (in byte
        units, 0 to 255, every pixel counted). All zeros for an empty set.
    """
    width = samples.shape[0]
    sums = torch.zeros(3, width, dtype=torch.float64)
    levels = torch.arange(256, dtype=torch.float64)
    powers = torch.stack([torch.ones_like(levels), levels, levels.square()])
    for values in in_blocks(samples.inputs, samples.rows):
        if values.dtype == torch.uint8:
            # A byte has 256 levels: counting them needs no float copy and is exact.
            for channel in range(width):
                histogram = torch.bincount(values[:, channel].reshape(-1), minlength=256)
                sums[:, channel] += powers @ histogram.cpu().double()
        else:
            present, rest = ~values.isnan(), (0, *range(2, values.ndim))  # all axes but that of features or channels
            numbers = values.double().nan_to_num_(0.0)
            sums += torch.stack([present.sum(rest), numbers.sum(rest), numbers.square_().sum(rest)]).cpu()
    count, total, squares = sums.tolist()
    return count, total, squares


def standardisation(count: Sequence[float], total: Sequence[float], squares: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Compute shift and scale from moments summed over sites.

    Returns
    -------
    shift, scale
        Flat float32 vectors: mean and standard deviation. The scale is 1 for constant values; shift 0 and scale 1
        without any value.
    """
    n = torch.as_tensor(count, dtype=torch.float64)
    shift = torch.as_tensor(total, dtype=torch.float64) / n.clamp(min=1)
    power = torch.as_tensor(squares, dtype=torch.float64) / n.clamp(min=1)
    variance = power - shift.square()
    # Below this share, the variance is a rounding error of a constant feature.
    constant = variance <= 1e-12 * power
    scale = torch.where(constant, 1.0, variance.clamp(min=0).sqrt())
    return shift.float(), scale.float()
