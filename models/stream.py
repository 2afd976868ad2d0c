"""A network's own random stream: what its layers draw follows from a seed, whatever else the process has drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

PLAIN = (
    *(nn.Sequential, nn.Conv2d, nn.BatchNorm2d, nn.ReLU),
    *(nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear),
)
"""Layers of the built-in networks that draw nothing. Any other layer may: functional dropout leaves no trace."""


def is_plain(layer: nn.Module) -> bool:
    """Return whether a layer is one of `PLAIN`, and no hook does anything besides."""
    return type(layer) in PLAIN and not layer._forward_hooks and not layer._forward_pre_hooks


def may_draw(module: nn.Module) -> bool:
    """Return whether a pass through a module may draw random numbers: unless it is all plain layers, it may."""
    return not all(map(is_plain, module.modules()))


class Stream:
    """Lends PyTorch's global generators to one network, in a state of its own.

    Layers draw from the process's generators and take no other: dropout, stochastic depth, ``torch.rand`` in a forward
    pass. So these are put into this stream's state for a pass, and back into their own after it. The layer need not be
    known, and the process's own draws are neither read nor moved on. A pass costs some microseconds.

    Parameters
    ----------
    device : torch.device
        Of the network. On a GPU, layers may draw from its generator and from that of the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[torch.device(device).index])
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Start the stream anew; the seed is in [0, 2^63)."""
        self._seed = seed
        self._states: list[Tensor] = []  # empty: at the seed

    @contextmanager
    def lent(self, training: bool) -> Iterator[None]:
        """Let whatever is drawn inside be drawn from this stream.

        Parameters
        ----------
        training : bool
            False: start at a fixed seed and leave the stream where it is, so that layers that draw in evaluation too
            draw the same in every pass.
        """
        outside = [generator.get_state() for generator in self._generators]
        try:
            if training and self._states:
                self._set(self._states)
            else:
                for generator in self._generators:
                    generator.manual_seed(self._seed if training else 0)
            yield
        finally:
            if training:
                self._states = [generator.get_state() for generator in self._generators]
            self._set(outside)

    def _set(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)
