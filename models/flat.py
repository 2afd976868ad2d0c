"""A network whose parameters are one flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from edelweiss.models.errors import ModelError
from edelweiss.models.layout import Layout, join, views
from edelweiss.models.stream import Stream, may_draw


class FlatNetwork(Layout):
    """Binds a module to one flat vector x, so that an algorithm is arithmetic on vectors.

    The module's trainable parameters become views into x: whatever changes x in place changes the network,
    and nothing is copied. Gradients come back as one flat vector in the same order, that of `Layout`.

    Parameters
    ----------
    module : nn.Module
        On its device and of its dtype already; it belongs to this object from here on.
    head : str
        The layer that the head begins with, such as "head" or "body.5"; the head is that layer and all behind it.
        Empty: the last layer that has parameters.

    Raises
    ------
    ModelError
        Where `Layout` does.
    """

    def __init__(self, module: nn.Module, head: str = "") -> None:
        super().__init__(module, head)
        self._x = join(self._parameters, self._parameters[0])
        self._point(self._parameters, self._x)
        self._statistics = join(self._buffers, self._x)
        self._point(self._buffers, self._statistics)
        self._stream = Stream(self._x.device) if may_draw(module) else None

    @staticmethod
    def _point(tensors: Sequence[Tensor], flat: Tensor) -> None:
        for tensor, view in zip(tensors, views(flat, tensors), strict=True):
            tensor.data = view

    def vector(self) -> Tensor:
        """Return a copy of the parameters, shape (``size``,)."""
        return self._x[: self.size].detach().clone()

    def bind(self, x: Tensor) -> None:
        """Make the parameters views into x, which this object keeps alive until it is bound to another.

        Binding the same tensor object again costs nothing. Autograd does not notice changes to x: between
        `forward` and the `gradient` of its loss, x must not change and no other vector may be bound.

        Parameters
        ----------
        x : Tensor
            Shape (d,) with d of at least ``size``: scalars of the problem may follow the parameters.

        Raises
        ------
        ModelError
            If x is too short, no vector, or of another dtype or device than the network.
        """
        if x is self._x:
            return
        if x.ndim != 1 or len(x) < self.size or x.dtype != self._x.dtype or x.device != self._x.device:
            raise ModelError(
                f"cannot bind {x.dtype} of shape {tuple(x.shape)} on {x.device}: the network needs a "
                f"vector of {self._x.dtype} with at least {self.size} entries on {self._x.device}"
            )
        self._point(self._parameters, x[: self.size])
        self._x = x

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the module's outputs for a batch, (n, outputs) for inputs (n, \\*shape).

        What the module draws comes from the network's own stream, see `reseed`.

        Raises
        ------
        ModelError
            In training mode, for so small a batch that batch norm finds no variance in it.
        """
        outputs: Tensor
        try:
            with nullcontext() if self._stream is None else self._stream.lent(self.module.training):
                outputs = self.module(inputs)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            text = "batch norm needs more than one in training: raise batch-size, or take a model without it"
            raise ModelError(f"a batch of {len(inputs)}: {text}") from None
        return outputs

    def gradient(self, loss: Tensor, extra: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Differentiate a loss with respect to the parameters and to other tensors.

        Parameters
        ----------
        loss : Tensor
            A scalar computed from `forward`.
        extra : sequence of Tensor
            Further tensors that require a gradient.

        Returns
        -------
        tuple of Tensor
            The gradient by the parameters, shape (``size``,), in memory of its own; then one gradient for
            each of ``extra``. What the loss does not depend on has a gradient of zeros.
        """
        gradients = torch.autograd.grad(loss, [*self._parameters, *extra], materialize_grads=True)
        count = len(self._parameters)
        return torch.cat([g.reshape(-1) for g in gradients[:count]]), *gradients[count:]

    def buffers(self) -> Tensor:
        """Return a copy of the floating-point buffers, shape (``buffer_size``,)."""
        return self._statistics.clone()

    def load_buffers(self, flat: Tensor) -> None:
        """Set the floating-point buffers from what `buffers` returned.

        Raises
        ------
        ModelError
            If ``flat`` is not of shape (``buffer_size``,).
        """
        self._require_buffers(flat)
        self._statistics.copy_(flat)

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation mode; free if the module is in that mode already."""
        if self.module.training != mode:
            self.module.train(mode)

    def reseed(self, seed: int) -> None:
        """Start the network's random stream anew: that of dropout, stochastic depth and whatever else draws.

        Equal passes in training mode after equal seeds draw the same, whatever the process drew before; its global
        generators stay as they are. In evaluation mode a module that draws does so alike in every pass.

        Parameters
        ----------
        seed : int
            In [0, 2^63).
        """
        if self._stream is not None:
            self._stream.seed(seed)
