"""One network under many parameter vectors at once: clients side by side, or tasks that it adapts to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, relu, relu_

from edelweiss.models.errors import ModelError
from edelweiss.models.flat import FlatNetwork
from edelweiss.models.stream import is_plain

OF_IMAGES = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d)
OVERWRITTEN = (*OF_IMAGES, nn.Linear)  # layers whose output, their own, their gradient does not need


class Stack:
    """Evaluates t copies of a network, each with parameters and inputs of its own, in one pass.

    A convolution becomes one with t groups, batch norm one over t times the channels, a linear layer a batched product:
    the same arithmetic as a loop over the copies, in kernels that are large enough to keep a machine busy, and
    differentiable twice.

    Parameters
    ----------
    network : FlatNetwork
        Of layers in a row: convolution, batch norm by the batch's own statistics, ReLU, pooling, flattening, linear.

    Raises
    ------
    ModelError
        For any other layer or form of one, batch norm that keeps running statistics (copies would share them), and
        parameters that are frozen or belong to two layers.
    """

    def __init__(self, network: FlatNetwork) -> None:
        self.module = network.module
        self.layers = list(_in_a_row(network.module))
        self._shapes = [p.shape for p in network.module.parameters()]
        self._sizes = [shape.numel() for shape in self._shapes]
        for layer in network.module.modules():
            if not _in_its_usual_form(layer):
                raise ModelError(
                    f"{type(layer).__name__} cannot be computed for many at once: take a network of layers in a "
                    "row whose batch norm, if any, uses the batch's own statistics, such as conv4 or mlp"
                )
        of_layers = sum(p.numel() for layer in self.layers for p in layer.parameters())
        if not of_layers == sum(self._sizes) == network.size:
            raise ModelError("parameters that are frozen, or belong to two layers, cannot be computed for many at once")
        self.images = any(isinstance(layer, OF_IMAGES) for layer in self.layers)

    def widest(self, shape: Sequence[int]) -> int:
        """Return the number of values in the largest tensor between layers, per input of this shape."""
        p = next(self.module.parameters())
        sizes = [prod(shape)]
        hook = nn.modules.module.register_module_forward_hook(lambda layer, args, z: sizes.append(z.numel() // 2))
        with torch.no_grad():
            self.module(torch.zeros(2, *shape, device=p.device, dtype=p.dtype))
        hook.remove()
        return max(sizes)

    def parameters(self, x: Tensor, copies: int) -> list[Tensor]:
        """Return the vector x (d,) as ``copies`` equal sets of parameters: leaves of shape (t, *shape), new memory."""
        pieces = x.detach().split_with_sizes(self._sizes)
        return [
            piece.view(1, *shape).repeat(copies, *[1] * len(shape)).requires_grad_()
            for piece, shape in zip(pieces, self._shapes, strict=True)
        ]

    def of_rows(self, x: Tensor) -> list[Tensor]:
        """Return the rows of x (t, d) as sets of parameters: leaves of shape (t, *shape), in the memory of x."""
        pieces = x.detach().split_with_sizes(self._sizes, 1)
        return [piece.view(len(x), *shape).requires_grad_() for piece, shape in zip(pieces, self._shapes, strict=True)]

    @staticmethod
    def total(parameters: Sequence[Tensor]) -> Tensor:
        """Return the sum of t sets of parameters, as one vector (d,)."""
        return torch.cat([p.detach().sum(0).flatten() for p in parameters])

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor, outermost: bool = False) -> Tensor:
        """Return the outputs of each copy on its own inputs.

        Parameters
        ----------
        parameters : sequence of Tensor
            Each of shape (t, *shape), in the order of `FlatNetwork`.
        inputs : Tensor
            Shape (t, n, *shape): n inputs for each of t copies.
        outermost : bool
            Whether images lie with the channels outermost: so second derivatives of convolutions are fastest on a CPU,
            and everything else with the channels innermost. The numbers are the same.

        Returns
        -------
        Tensor
            Shape (t, n, outputs).
        """
        t, n = inputs.shape[:2]
        if self.images:  # copies side by side in the channels, until they are flattened
            if outermost:
                inputs = inputs.transpose(0, 1).reshape(n, -1, *inputs.shape[3:])
            else:
                # Flat first: the strides of a single channel then say that it is innermost.
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


def not_stacked(network: FlatNetwork) -> str:
    """Say why a network cannot be computed for many at once; empty: it can."""
    try:
        Stack(network)
    except ModelError as error:
        return str(error)
    return ""


def _in_a_row(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a network that is a row of them, and of rows."""
    if isinstance(module, nn.Sequential):
        for layer in module:
            yield from _in_a_row(layer)
    else:
        yield module


def _in_its_usual_form(layer: nn.Module) -> bool:
    """Whether `_apply` does what a layer does."""
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
    """Apply a layer; images are (n, t * channels, height, width), all else (t, n, *shape)."""
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
            weight, z = next(parameters), z.transpose(1, 2)  # so its gradient lies as it does itself: no copy turns it
            z = torch.bmm(weight, z) if layer.bias is None else torch.baddbmm(next(parameters)[..., None], weight, z)
            return z.transpose(1, 2)
    pooled: Tensor = layer(z)  # channel by channel
    return pooled
