"""ResNet-20 for images of 32 or 16 pixels (He et al. 2016, section 4.2), with the layers of LibAUC's in their order."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut without parameters, which subsamples and pads with zero channels."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.stride, self.more = stride, (after - before) // 2

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features of the same size, or of half of it."""
        short = inputs[:, :, :: self.stride, :: self.stride]
        return relu(
            self.bn2(self.conv2(relu(self.bn1(self.conv1(inputs))))) + pad(short, (0, 0, 0, 0, *[self.more] * 2))
        )


class ResNet20(nn.Module):
    """Three stages of three blocks, of 16, 32 and 64 channels; 269,137 parameters with one output.

    As in LibAUC, weights are drawn by Glorot's rule.
    """

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(*(Block(before, after, after // before) for before, after in pairwise(widths)))
        self.linear = nn.Linear(64, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores (n, outputs) of images (n, 3, height, width)."""
        features: Tensor = self.blocks(relu(self.bn1(self.conv1(images))))
        scores: Tensor = self.linear(torch.mean(features, (2, 3)))
        return scores
