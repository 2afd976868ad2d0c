"""One network under many parameter vectors at once: what adapts to a task of its own in each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, relu_

from models.errors import ModelError
from models.flat import FlatNetwork
from models.stream import PLAIN


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
        For any other layer, or batch norm that keeps running statistics: copies would share them.
    """

    def __init__(self, network: FlatNetwork) -> None:
        self.module = network.module
        self._shapes = [p.shape for p in network.module.parameters()]
        self._sizes = [shape.numel() for shape in self._shapes]
        for layer in network.module.modules():
            if not isinstance(layer, PLAIN) or (isinstance(layer, nn.BatchNorm2d) and layer.track_running_stats):
                raise ModelError(
                    f"{type(layer).__name__} cannot be adapted to many tasks at once: take a network of layers in a "
                    "row whose batch norm, if any, uses the batch's own statistics, such as conv4 or mlp"
                )

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

    @staticmethod
    def total(parameters: Sequence[Tensor]) -> Tensor:
        """Return the sum of t sets of parameters, as one vector (d,)."""
        return torch.cat([p.detach().sum(0).flatten() for p in parameters])

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor, twice: bool = False) -> Tensor:
        """Return the outputs of each copy on its own inputs.

        Parameters
        ----------
        parameters : sequence of Tensor
            Each of shape (t, *shape), in the order of `FlatNetwork`.
        inputs : Tensor
            Shape (t, n, *shape): n inputs for each of t copies.
        twice : bool
            Whether the outputs will be differentiated twice. On a CPU second derivatives of convolutions are fastest
            with the channels outermost, everything else with the channels innermost; the numbers are the same.

        Returns
        -------
        Tensor
            Shape (t, n, outputs).
        """
        t, n = inputs.shape[:2]
        if inputs.ndim == 5:  # images: copies side by side in the channels
            if twice:
                inputs = inputs.transpose(0, 1).reshape(n, -1, *inputs.shape[3:])
            else:
                # Flat first: the strides of a single channel then say that it is innermost.
                flat = inputs.permute(1, 3, 4, 0, 2).flatten()
                inputs = flat.view(n, *inputs.shape[3:], -1).permute(0, 3, 1, 2)
        return _apply(self.module, iter(parameters), inputs, t)


def _apply(layer: nn.Module, parameters: Iterator[Tensor], z: Tensor, t: int) -> Tensor:
    """Apply a layer; images are (n, t * channels, height, width), vectors (t, n, features)."""
    match layer:
        case nn.Sequential():
            for inner in layer:
                z = _apply(inner, parameters, z, t)
            return z
        case nn.Conv2d():
            weight = next(parameters).flatten(0, 1)
            bias = next(parameters).flatten() if layer.bias is not None else None
            return conv2d(z, weight, bias, layer.stride, layer.padding, layer.dilation, t * layer.groups)
        case nn.BatchNorm2d():
            weight, bias = next(parameters).flatten(), next(parameters).flatten()
            return batch_norm(z, None, None, weight, bias, training=True, eps=layer.eps)
        case nn.ReLU():
            return relu_(z)  # of a layer's own output, which that layer does not need again
        case nn.Flatten():
            return z.reshape(len(z), t, -1).transpose(0, 1) if z.ndim == 4 else z.flatten(2)
        case nn.Linear():
            weight, bias = next(parameters), next(parameters)
            return torch.baddbmm(bias[:, None], z, weight.transpose(1, 2))
    pooled: Tensor = layer(z)  # channel by channel
    return pooled
