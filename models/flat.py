"""A network with its parameters in one flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from edelweiss.models.errors import ModelError
from edelweiss.models.layout import Layout, join, views
from edelweiss.models.stream import Stream, may_draw


class FlatNetwork(Layout):
    """A module bound to one flat vector x, so that algorithms are arithmetic on vectors.

    The module's trainable parameters become views into x: changing x in place changes the network, without copies.
    Gradients are flat vectors in the same order, that of `Layout`.

    Parameters
    ----------
    module : nn.Module
        Already on its device and of its dtype; this object takes ownership.
    head : str
        The first layer of the head, such as "head" or "body.5"; the head is that layer and all that follow.
        Empty: the last layer with parameters.

    Raises
    ------
    ModelError
        As `Layout`.
    """

    def __init__(self, module: nn.Module, head: str = "") -> None:
        super().__init__(module, head)
        self._x = join(self._parameters, self._parameters[0])
        self._alias(self._parameters, self._x)
        self._statistics = join(self._buffers, self._x)
        self._alias(self._buffers, self._statistics)
        self._stream = Stream(self._x.device) if may_draw(module) else None

    @staticmethod
    def _alias(tensors: Sequence[Tensor], flat: Tensor) -> None:
        for tensor, view in zip(tensors, views(flat, tensors), strict=True):
            tensor.data = view

    def vector(self) -> Tensor:
        """Return a copy of the parameters, shape (``size``,)."""
        return self._x[: self.size].detach().clone()

    def bind(self, x: Tensor) -> None:
        """Make the parameters views into x, which stays alive until another vector is bound.

        Rebinding the same tensor object is free. Autograd does not notice changes to x: between `forward` and the
        `gradient` of its loss, x must not change and no other vector may be bound.

        Parameters
        ----------
        x : Tensor
            Shape (d,), d at least ``size``: scalars of the problem may follow the parameters.

        Raises
        ------
        ModelError
            If x is not a vector, too short, or its dtype or device differs from the network's.
        """
        if x is self._x:
            return
        if x.ndim != 1 or len(x) < self.size or x.dtype != self._x.dtype or x.device != self._x.device:
            raise ModelError(
                f"cannot bind {x.dtype} of shape {tuple(x.shape)} on {x.device}: the network needs a "
                f"vector of {self._x.dtype} with at least {self.size} entries on {self._x.device}",
                key="x",
                value=x,
            )
        self._alias(self._parameters, x[: self.size])
        self._x = x

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the module's outputs for a batch, (n, outputs) for inputs (n, \\*shape).

        Random layers draw from the network's own stream, see `reseed`.

        Raises
        ------
        ModelError
            In training mode, if the batch is too small for batch norm.
        """
        outputs: Tensor
        try:
            with self.drawing():
                outputs = self.module(inputs)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            text = "batch norm needs more in training: raise batch-size, or choose a model without batch norm"
            raise ModelError(f"a batch of {len(inputs)}: {text}", key="batch-size", value=len(inputs)) from None
        return outputs

    def functional(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Compute the module's outputs with the parameters x, differentiable by x and fit for ``vmap``.

        x has shape (d,), d at least ``size``; nothing is bound. Random layers draw inside `drawing` only.
        """
        parameters = {
            name: x[span].view(parameter.shape)
            for (name, span), parameter in zip(self.spans.items(), self._parameters, strict=True)
        }
        outputs: Tensor = functional_call(self.module, parameters, (inputs,))
        return outputs

    def drawing(self) -> AbstractContextManager[object]:
        """Return a context in which random layers draw from the network's own stream, see `reseed`."""
        return nullcontext() if self._stream is None else self._stream.active(self.module.training)

    def gradient(self, loss: Tensor, extra: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Differentiate a loss with respect to the parameters and other tensors.

        Parameters
        ----------
        loss : Tensor
            A scalar computed from `forward`.
        extra : sequence of Tensor
            Further tensors that require a gradient.

        Returns
        -------
        tuple of Tensor
            The gradient with respect to the parameters, shape (``size``,), in new memory; then one gradient for each
            of ``extra``. Gradients of tensors that the loss does not depend on are zero.
        """
        gradients = torch.autograd.grad(loss, [*self._parameters, *extra], materialize_grads=True)
        count = len(self._parameters)
        return torch.cat([g.reshape(-1) for g in gradients[:count]]), *gradients[count:]

    def buffers(self) -> Tensor:
        """Return a copy of the floating-point buffers, shape (``buffer_size``,)."""
        return self._statistics.clone()

    def load_buffers(self, flat: Tensor) -> None:
        """Set the floating-point buffers, the inverse of `buffers`.

        Raises
        ------
        ModelError
            If ``flat`` is not of shape (``buffer_size``,).
        """
        self._require_buffers(flat)
        self._statistics.copy_(flat)

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation mode; free if nothing changes."""
        if self.module.training != mode:
            self.module.train(mode)

    def reseed(self, seed: int) -> None:
        """Restart the network's random stream, used by dropout, stochastic depth and any other random layer.

        In training mode equal seeds give equal draws, whatever the process drew before; its global generators are not
        affected. In evaluation mode a random layer draws the same in every pass.

        Parameters
        ----------
        seed : int
            In [0, 2^63).
        """
        if self._stream is not None:
            self._stream.seed(seed)
