"""torchvision's networks, untrained, for images of any size and number of channels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from torch import nn

from edelweiss.models.shapes import SMALLEST_IMAGE, Shape, image

GROUP_NORM = "-gn"  # ends the names of networks with group norm
GROUPS = 32
_SMALL_IMAGE = 64  # pixels; a stem that divides the sides by four would leave too few of these

STEMS = {
    "resnet18": "conv1",
    "resnet50": "conv1",
    "densenet121": "features.conv0",
    "densenet161": "features.conv0",
    "efficientnet-b0": "features.0.0",
}
"""The first convolution of each of torchvision's networks."""


def _network(
    name: str,
    shape: Shape,
    outputs: int,
    hidden: int,
    *,
    fan: Literal["fan_in", "fan_out"],
    pool: str = "",
    smallest: int = SMALLEST_IMAGE,
) -> nn.Module:
    """torchvision's network, untrained, with a first convolution for these channels and this size.

    For images with a side of up to 64 pixels it is 3 x 3 with stride 1, without max-pooling, as usual on CIFAR.
    """
    channels, height, width = image(name, shape, smallest)
    from edelweiss.datasets.vision import import_torchvision  # slow to import

    models = import_torchvision().models
    network: nn.Module = models.get_model(name.replace("-", "_"), weights=None, num_classes=outputs)
    stem = STEMS[name]
    first: Any = network.get_submodule(stem)
    kernel, stride, padding = first.kernel_size, first.stride, first.padding
    if min(height, width) <= _SMALL_IMAGE:
        kernel, stride, padding = 3, 1, 1
        if pool:
            network.set_submodule(pool, nn.Identity())
    convolution = nn.Conv2d(channels, first.out_channels, kernel, stride, padding, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode=fan, nonlinearity="relu")  # as torchvision's own
    network.set_submodule(stem, convolution)
    return network


def _with_group_norm(build: Callable[..., nn.Module], name: str, *size: Any) -> nn.Module:
    """A network with group norm (Wu & He, ECCV 2018) in place of batch norm, which mixes the samples of a batch."""
    network = build(name.removesuffix(GROUP_NORM), *size)
    for place, layer in [*network.named_modules()]:
        if isinstance(layer, nn.BatchNorm2d):
            network.set_submodule(place, nn.GroupNorm(math.gcd(GROUPS, layer.num_features), layer.num_features))
    return network


resnet = partial(_network, pool="maxpool", fan="fan_out")
densenet = partial(_network, pool="features.pool0", fan="fan_in")
efficientnet = partial(_network, fan="fan_out", smallest=17)  # 16 pixels leave only 1 x 1
resnet_gn, densenet_gn = partial(_with_group_norm, resnet), partial(_with_group_norm, densenet)
