"""Dropout that a seed decides, whatever else the process has drawn."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """Dropout (Srivastava et al. 2014) with masks of a stream of its own.

    PyTorch's draws from the process's global generator, so its masks depend on which sites the process served before.
    These are drawn on the CPU, also for a GPU, from ``stream``: the bits are the same on every device and on any number
    of workers. `FlatNetwork.reseed` sets the stream that all of a network's layers share.

    Attributes
    ----------
    stream : torch.Generator
        On the CPU.
    """

    def __init__(self, p: float) -> None:
        super().__init__(p)
        self.stream = torch.Generator()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs, in training each 0 with probability p and else divided by 1 - p."""
        if not self.training:
            return inputs
        kept = torch.rand(inputs.shape, generator=self.stream) >= self.p
        return inputs * kept.to(inputs).div_(1 - self.p)
