"""Where the parameters and the buffers of a module lie in flat vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from edelweiss.models.errors import ModelError


class Layout:
    """Where each trainable parameter of a module lies in one flat vector x, and each buffer in another.

    The order is that of ``module.named_parameters()``. A parameter that layers share is there once, a frozen one not at
    all. What the vectors hold is `models.flat.FlatNetwork`'s affair.

    Parameters
    ----------
    module : nn.Module
        On its device and of its dtype already.
    head : str
        The layer that the head begins with, such as "head" or "body.5"; the head is that layer and all behind it.
        Empty: the last layer that has parameters.

    Attributes
    ----------
    module : nn.Module
        The network itself.
    head : int
        Where the head begins in x; x[:head] is the body. 0 where the whole network is the head.
    size : int
        Number of trainable parameters, counted as scalars.
    buffer_size : int
        Number of entries in the module's `statistics`.
    spans : dict of str to slice
        Where each trainable parameter lies in x; the slices cover 0 to ``size`` without gaps. For the
        networks of `build` the last two are the weight and the bias of the head.

    Raises
    ------
    ModelError
        If nothing is trainable, if the parameters and buffers differ in dtype or device, or if there is no such layer
        as ``head``.
    """

    def __init__(self, module: nn.Module, head: str = "") -> None:
        self.module = module
        # Tied tensors appear in a state dict under each of their names, elsewhere once.
        self._state: dict[str, Tensor] = module.state_dict(keep_vars=True)
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._parameters, self._buffers = list(parameters.values()), statistics(module)
        if not parameters:
            raise ModelError(f"{type(module).__name__} has no trainable parameters")
        kinds = {f"{t.dtype} on {t.device}" for t in (*self._parameters, *self._buffers)}
        if len(kinds) > 1:
            raise ModelError(
                f"{type(module).__name__} mixes {' and '.join(sorted(kinds))}; a flat vector is of one kind"
            )
        self.size = sum(p.numel() for p in self._parameters)
        self.buffer_size = sum(b.numel() for b in self._buffers)
        self.spans: dict[str, slice] = {}
        start = 0
        for name, parameter in parameters.items():
            self.spans[name] = slice(start, start + parameter.numel())
            start += parameter.numel()
        self.head = self._start(head or list(self.layers())[-1])

    def layers(self) -> dict[str, list[tuple[slice, tuple[int, ...]]]]:
        """Return the layers that have trainable parameters, in their order: where in x these lie, and their shapes."""
        found: dict[str, list[tuple[slice, tuple[int, ...]]]] = {}
        for (name, span), parameter in zip(self.spans.items(), self._parameters, strict=True):
            found.setdefault(name.rpartition(".")[0], []).append((span, tuple(parameter.shape)))
        return found

    def _start(self, layer: str) -> int:
        """Return where a layer, or a module of several, begins in x."""
        inside = [span.start for name, span in self.spans.items() if f"{name}.".startswith(layer and f"{layer}.")]
        if not inside:
            raise ModelError(f"head = {layer!r}: no such layer; the model's layers are {', '.join(self.layers())}")
        return int(min(inside))

    def state_dict(self, x: Tensor, buffers: Tensor | None = None) -> dict[str, Tensor]:
        """Return a state dict that a fresh module loads with ``strict=True``.

        Parameters
        ----------
        x : Tensor
            The parameters, shape (d,) with d of at least ``size``; need not be the module's own.
        buffers : Tensor, optional
            The floating-point buffers, shape (``buffer_size``,); the module's own by default. Integer buffers
            and frozen parameters are always the module's own.

        Returns
        -------
        dict of str to Tensor
            Contiguous copies under the names of ``module.state_dict()``.

        Raises
        ------
        ModelError
            If x is too short or ``buffers`` of another shape.
        """
        if x.ndim != 1 or len(x) < self.size:
            raise ModelError(f"x has shape {tuple(x.shape)}: the network needs a vector of at least {self.size}")
        given = dict(zip(map(id, self._parameters), views(x[: self.size], self._parameters), strict=True))
        if buffers is not None:
            self._require_buffers(buffers)
            given |= zip(map(id, self._buffers), views(buffers, self._buffers), strict=True)
        return {
            name: given.get(id(tensor), tensor.detach()).clone(memory_format=torch.contiguous_format)
            for name, tensor in self._state.items()
        }

    def flatten(self, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Turn a state dict into vectors, the inverse of `state_dict`.

        Parameters
        ----------
        state : mapping of str to Tensor
            Exactly the names and shapes of ``module.state_dict()``, on any device. Integer buffers and frozen
            parameters have no place in the vectors and are dropped.

        Returns
        -------
        x, buffers : Tensor
            Shapes (``size``,) and (``buffer_size``,), new, of the network's dtype and on its device.

        Raises
        ------
        ModelError
            Naming everything that `misfits` finds.
        """
        if wrong := self.misfits(state):
            raise ModelError(f"the state does not fit {type(self.module).__name__}: " + "; ".join(wrong.values()))
        values = {id(tensor): state[name] for name, tensor in self._state.items()}
        like = self._parameters[0]
        x, buffers = (
            join((values[id(tensor)] for tensor in tensors), like) for tensors in (self._parameters, self._buffers)
        )
        return x, buffers

    def misfits(self, state: Mapping[str, Tensor]) -> dict[str, str]:
        """Return what `flatten` refuses of a state dict, in words by name: missing, unexpected, of another kind."""
        wrong = {name: f"missing {name!r}" for name in self._state if name not in state}
        wrong |= {name: f"unexpected {name!r}" for name in state if name not in self._state}
        return (
            wrong
            | {
                name: f"{name!r} has shape {tuple(state[name].shape)}, not {tuple(tensor.shape)}"
                for name, tensor in self._state.items()
                if name in state and state[name].shape != tensor.shape
            }
            | {
                name: f"{name!r} holds {str(state[name].dtype).removeprefix('torch.')}, not real numbers"
                for name, tensor in self._state.items()
                if name in state and tensor.is_floating_point() and not state[name].is_floating_point()
            }
        )

    def names_in_head(self) -> set[str]:
        """Return the names in the state dict of what belongs to the head: its parameters, its layers' buffers."""
        layers = {name.rpartition(".")[0] for name, span in self.spans.items() if span.start >= self.head}
        return {name for name in self._state if name.rpartition(".")[0] in layers}

    def _require_buffers(self, flat: Tensor) -> None:
        if flat.shape != (self.buffer_size,):  # copy_ would spread a single number over all of them
            raise ModelError(f"buffers have shape {tuple(flat.shape)}: the network needs ({self.buffer_size},)")


def statistics(module: nn.Module) -> list[Tensor]:
    """Return the module's persistent floating-point buffers: the running means and variances of batch norm.

    Its counters, integers, are not among them.
    """
    kept = module.state_dict(keep_vars=True)
    return [buffer for name, buffer in module.named_buffers() if name in kept and buffer.is_floating_point()]


def join(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """Copy tensors into one new flat vector of the dtype and on the device of another; there may be none."""
    return torch.cat([like.new_empty(0), *(t.detach().to(like).reshape(-1) for t in tensors)])


def views(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat vector into views of the shapes of tensors.

    A convolution over one channel has the same memory in both of PyTorch's layouts and only its strides tell which is
    meant. Its weight says channels-last: from there on activations are, and convolutions and pooling on a CPU take
    60 % of the time.
    """
    pieces = flat.detach().split_with_sizes([t.numel() for t in tensors])
    return [
        piece.view(len(t), *t.shape[2:], 1).permute(0, 3, 1, 2)
        if t.ndim == 4 and t.shape[1] == 1
        else piece.view(t.shape)
        for piece, t in zip(pieces, tensors, strict=True)
    ]
