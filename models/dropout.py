"""Dropout with the same masks on every device."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """Dropout (Srivastava et al. 2014) whose masks are drawn on the CPU, also for a GPU.

    PyTorch's draws on the device of its inputs, so that equal seeds give other masks on a GPU than on a CPU.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs, in training each 0 with probability p and else divided by 1 - p."""
        if not self.training:
            return inputs
        kept = torch.rand(inputs.shape, device="cpu") >= self.p
        return inputs * kept.to(inputs).div_(1 - self.p)
