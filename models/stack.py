"""Vectorised evaluation of one network under many parameter vectors: clients side by side, or MAML's tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, relu, relu_

from edelweiss.models.errors import ModelError
from edelweiss.models.flat import FlatNetwork
from edelweiss.models.stream import is_plain

IMAGE_LAYERS = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d)
OVERWRITTEN = (*IMAGE_LAYERS, nn.Linear)  # layers whose gradient does not need their output


class Stack:
    """Vectorised evaluation of t copies of a network, each with its own parameters and inputs.

    A convolution becomes one with t groups, batch norm runs over t times the channels, a linear layer becomes a batched
    product: the same arithmetic as a loop over the copies, in larger kernels, and twice differentiable.

    Parameters
    ----------
    network : FlatNetwork
        A sequence of convolution, batch norm by the batch's own statistics, ReLU, pooling, flattening, linear layers.

    Raises
    ------
    ModelError
        For any other layer or option of one, batch norm with running statistics (which copies would share), and frozen
        or shared parameters.
    """

    def __init__(self, network: FlatNetwork) -> None:
        self.module = network.module
        self.layers = list(_flat_layers(network.module))
        self._shapes = [p.shape for p in network.module.parameters()]
        self._sizes = [shape.numel() for shape in self._shapes]
        for layer in network.module.modules():
            if not _is_supported(layer):
                raise ModelError(
                    f"{type(layer).__name__} cannot be vectorised over clients: choose a sequential network whose "
                    "batch norm, if any, uses the batch's own statistics, such as conv4 or mlp",
                    key="layer",
                    value=layer,
                )
        in_layers = sum(p.numel() for layer in self.layers for p in layer.parameters())
        if not in_layers == sum(self._sizes) == network.size:
            raise ModelError("frozen or shared parameters cannot be vectorised over clients", key="parameters")
        self.images = any(isinstance(layer, IMAGE_LAYERS) for layer in self.layers)

    def largest_activation(self, shape: Sequence[int]) -> int:
        """Return the size of the largest activation, per input of this shape."""
        p = next(self.module.parameters())
        sizes = [prod(shape)]
        hook = nn.modules.module.register_module_forward_hook(lambda layer, args, z: sizes.append(z.numel() // 2))
        with torch.no_grad():
            self.module(torch.zeros(2, *shape, device=p.device, dtype=p.dtype))
        hook.remove()
        return max(sizes)

    def parameters(self, x: Tensor, copies: int) -> list[Tensor]:
        """Return x (d,) as ``copies`` equal sets of parameters: leaves of shape (t, *shape) in new memory."""
        pieces = x.detach().split_with_sizes(self._sizes)
        return [
            piece.view(1, *shape).repeat(copies, *[1] * len(shape)).requires_grad_()
            for piece, shape in zip(pieces, self._shapes, strict=True)
        ]

    def from_rows(self, x: Tensor) -> list[Tensor]:
        """Return the rows of x (t, d) as sets of parameters: leaves of shape (t, *shape) in the memory of x."""
        pieces = x.detach().split_with_sizes(self._sizes, 1)
        return [piece.view(len(x), *shape).requires_grad_() for piece, shape in zip(pieces, self._shapes, strict=True)]

    @staticmethod
    def total(parameters: Sequence[Tensor]) -> Tensor:
        """Return the sum of t sets of parameters, as one vector (d,)."""
        return torch.cat([p.detach().sum(0).flatten() for p in parameters])

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor, outermost: bool = False) -> Tensor:
        """Compute the outputs of each of t copies on its own n inputs, shape (t, n, *shape) to (t, n, outputs).

        Each of the parameters, in the order of `FlatNetwork`, has t as its first axis. With `outermost` images are
        stored channels-first, which is fastest for second derivatives of convolutions on a CPU; everything else is
        fastest channels-last. The numbers are the same.
        """
        t, n = inputs.shape[:2]
        if self.images:  # copies share the channel dimension until they are flattened
            if outermost:
                inputs = inputs.transpose(0, 1).reshape(n, -1, *inputs.shape[3:])
            else:
                # Flatten first, so that the strides say channels-last even with a single channel.
                flat = inputs.permute(1, 3, 4, 0, 2).flatten()
                inputs = flat.view(n, *inputs.shape[3:], -1).permute(0, 3, 1, 2)
        z, rest, images, before = inputs, iter(parameters), self.images, None
        for layer in self.layers:
            if images and isinstance(layer, nn.Flatten):
                z, images = z.reshape(n, t, -1).transpose(0, 1), False
            elif isinstance(layer, nn.ReLU) and isinstance(before, OVERWRITTEN):
                z = relu_(z)
            else:
                z = _apply(layer, rest, z, t)
            before = layer
        return z


def unstackable_reason(network: FlatNetwork) -> str:
    """Return why a network cannot be vectorised over clients; empty if it can."""
    try:
        Stack(network)
    except ModelError as error:
        return str(error)
    return ""


def _flat_layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a network, nested sequences flattened."""
    if isinstance(module, nn.Sequential):
        for layer in module:
            yield from _flat_layers(layer)
    else:
        yield module


def _is_supported(layer: nn.Module) -> bool:
    if not is_plain(layer):
        return False
    match layer:
        case nn.Conv2d():
            return layer.padding_mode == "zeros"
        case nn.BatchNorm2d():
            return layer.affine and not layer.track_running_stats
        case nn.Flatten():
            return (layer.start_dim, layer.end_dim) == (1, -1)
        case nn.MaxPool2d():
            return not layer.return_indices
    return True


def _apply(layer: nn.Module, parameters: Iterator[Tensor], z: Tensor, t: int) -> Tensor:
    """Apply a layer; images have shape (n, t * channels, height, width), all else (t, n, *shape)."""
    match layer:
        case nn.Conv2d():
            weight = next(parameters).flatten(0, 1)
            bias = next(parameters).flatten() if layer.bias is not None else None
            return conv2d(z, weight, bias, layer.stride, layer.padding, layer.dilation, t * layer.groups)
        case nn.BatchNorm2d():
            weight, bias = next(parameters).flatten(), next(parameters).flatten()
            return batch_norm(z, None, None, weight, bias, training=True, eps=layer.eps)
        case nn.ReLU():
            return relu(z)
        case nn.Flatten():
            return z.flatten(2)
        case nn.Linear():
            weight, z = next(parameters), z.transpose(1, 2)  # the gradient then has the weight's layout, without a copy
            z = torch.bmm(weight, z) if layer.bias is None else torch.baddbmm(next(parameters)[..., None], weight, z)
            return z.transpose(1, 2)
    pooled: Tensor = layer(z)  # pooling acts per channel
    return pooled
