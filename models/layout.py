"""The layout of a module's parameters and buffers in flat vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from edelweiss.models.errors import ModelError


class Layout:
    """The positions of a module's trainable parameters in one flat vector x, and of its buffers in another.

    The order is that of ``module.named_parameters()``. A shared parameter appears once, a frozen one not at all.
    `models.flat.FlatNetwork` owns the vectors themselves.

    Parameters
    ----------
    module : nn.Module
        Already on its device and of its dtype.
    head : str
        The first layer of the head, such as "head" or "body.5"; the head is that layer and all that follow.
        Empty: the last layer with parameters.

    Attributes
    ----------
    module : nn.Module
        The network itself.
    head : int
        The index in x where the head begins; x[:head] is the body. 0 if the whole network is the head.
    size : int
        Number of trainable parameters, counted as scalars.
    buffer_size : int
        Number of entries in the module's `statistics`.
    spans : dict of str to slice
        The position of each trainable parameter in x; the slices cover 0 to ``size`` without gaps. For the networks of
        `build` the last two are the weight and bias of the head.

    Raises
    ------
    ModelError
        If nothing is trainable, the parameters and buffers differ in dtype or device, or no layer is named ``head``.
    """

    def __init__(self, module: nn.Module, head: str = "") -> None:
        self.module = module
        # Tied tensors appear under each of their names in a state dict, once elsewhere.
        self._state: dict[str, Tensor] = module.state_dict(keep_vars=True)
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._parameters, self._buffers = list(parameters.values()), statistics(module)
        if not parameters:
            raise ModelError(f"{type(module).__name__} has no trainable parameters", key="parameters")
        kinds = {f"{t.dtype} on {t.device}" for t in (*self._parameters, *self._buffers)}
        if len(kinds) > 1:
            raise ModelError(
                f"{type(module).__name__} mixes {' and '.join(sorted(kinds))}: it needs one dtype and device",
                key="dtype",
                value=kinds,
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
        """Return the layers with trainable parameters, in order: the position in x and the shape of each parameter."""
        found: dict[str, list[tuple[slice, tuple[int, ...]]]] = {}
        for (name, span), parameter in zip(self.spans.items(), self._parameters, strict=True):
            found.setdefault(name.rpartition(".")[0], []).append((span, tuple(parameter.shape)))
        return found

    def norms(self) -> Tensor:
        """Return the positions in x of the scales and shifts of batch norm with running statistics, int64."""
        layers = {name for name, m in self.module.named_modules() if isinstance(m, BatchNorm) and m.track_running_stats}
        spans = [span for name, span in self.spans.items() if name.rpartition(".")[0] in layers]
        like = self._parameters[0]
        return torch.cat([torch.arange(0), *(torch.arange(s.start, s.stop) for s in spans)]).to(like.device)

    def _start(self, layer: str) -> int:
        """Return the index in x where a layer, or a module of several, begins."""
        inside = [span.start for name, span in self.spans.items() if f"{name}.".startswith(layer and f"{layer}.")]
        if not inside:
            layers = [*self.layers()]
            text = f"head = {layer!r}: no such layer; the model's layers are {', '.join(layers)}"
            raise ModelError(text, key="head", value=layer, allowed=layers)
        return int(min(inside))

    def state_dict(self, x: Tensor, buffers: Tensor | None = None) -> dict[str, Tensor]:
        """Return a state dict that a fresh module loads with ``strict=True``.

        x has shape (d,), d at least ``size``, and need not be the module's own; `buffers` are the floating-point ones,
        by default the module's. Integer buffers and frozen parameters are always the module's own. The tensors are
        contiguous copies.

        Raises
        ------
        ModelError
            If x is too short or ``buffers`` has the wrong shape.
        """
        if x.ndim != 1 or len(x) < self.size:
            text = f"x has shape {tuple(x.shape)}: the network needs a vector of at least {self.size}"
            raise ModelError(text, key="x", value=x)
        given = dict(zip(map(id, self._parameters), views(x[: self.size], self._parameters), strict=True))
        if buffers is not None:
            self._require_buffers(buffers)
            given |= zip(map(id, self._buffers), views(buffers, self._buffers), strict=True)
        return {
            name: given.get(id(tensor), tensor.detach()).clone(memory_format=torch.contiguous_format)
            for name, tensor in self._state.items()
        }

    def flatten(self, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Convert a state dict to vectors, the inverse of `state_dict`.

        State is on any device; integer buffers and frozen parameters are dropped. x, shape (``size``,), and buffers,
        shape (``buffer_size``,), are new, of the network's dtype and device.

        Raises
        ------
        ModelError
            Listing all `mismatches`.
        """
        if wrong := self.mismatches(state):
            text = f"the state does not fit {type(self.module).__name__}: " + "; ".join(wrong.values())
            raise ModelError(text, key="state", value=wrong)
        values = {id(tensor): state[name] for name, tensor in self._state.items()}
        like = self._parameters[0]
        x, buffers = (
            join((values[id(tensor)] for tensor in tensors), like) for tensors in (self._parameters, self._buffers)
        )
        return x, buffers

    def mismatches(self, state: Mapping[str, Tensor]) -> dict[str, str]:
        """List by name what `flatten` refuses in a state dict: missing or unexpected names, wrong shapes or dtypes."""
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

    def head_names(self) -> set[str]:
        """Return the state dict's names of the head's parameters and buffers."""
        layers = {name.rpartition(".")[0] for name, span in self.spans.items() if span.start >= self.head}
        return {name for name in self._state if name.rpartition(".")[0] in layers}

    def _require_buffers(self, flat: Tensor) -> None:
        if flat.shape != (self.buffer_size,):  # copy_ would broadcast a single number
            text = f"buffers have shape {tuple(flat.shape)}: the network needs ({self.buffer_size},)"
            raise ModelError(text, key="buffers", value=flat)


def statistics(module: nn.Module) -> list[Tensor]:
    """Return the module's persistent floating-point buffers: the running means and variances of batch norm."""
    persistent = module.state_dict(keep_vars=True)
    return [buffer for name, buffer in module.named_buffers() if name in persistent and buffer.is_floating_point()]


def join(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """Concatenate tensors (possibly none) into a new flat vector with the dtype and device of ``like``."""
    return torch.cat([like.new_empty(0), *(t.detach().to(like).reshape(-1) for t in tensors)])


def views(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat vector into views with the shapes of tensors.

    The weight of a convolution over one channel has the same memory in both of PyTorch's layouts; only its strides
    differ. The strides chosen here say channels-last, which the activations then follow: convolutions and pooling on a
    CPU take 60 % of the time.
    """
    pieces = flat.detach().split_with_sizes([t.numel() for t in tensors])
    return [
        piece.view(len(t), *t.shape[2:], 1).permute(0, 3, 1, 2)
        if t.ndim == 4 and t.shape[1] == 1
        else piece.view(t.shape)
        for piece, t in zip(pieces, tensors, strict=True)
    ]
