"""Dropout with identical masks on every device."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """Dropout (Srivastava et al. 2014) whose masks are drawn on the CPU, also for a GPU.

    PyTorch draws on the device of the inputs, so that equal seeds give different masks on GPU and CPU.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """In training, zero each input with probability p and divide the others by 1 - p."""
        if not self.training:
            return inputs
        kept = torch.rand(inputs.shape, device="cpu") >= self.p
        return inputs * kept.to(inputs).div_(1 - self.p)
