"""A random stream for each network: its layers' draws depend only on a seed, not on other draws of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

PLAIN = (
    *(nn.Sequential, nn.Conv2d, nn.BatchNorm2d, nn.ReLU),
    *(nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear),
)
"""Deterministic layers of the built-in networks. Any other layer may draw, such as by functional dropout."""


def is_plain(layer: nn.Module) -> bool:
    """Return whether a layer is one of `PLAIN`, without hooks."""
    return type(layer) in PLAIN and not layer._forward_hooks and not layer._forward_pre_hooks


def may_draw(module: nn.Module) -> bool:
    """Return whether a pass through a module may draw random numbers: unless all its layers are plain."""
    return not all(map(is_plain, module.modules()))


class Stream:
    """A state of PyTorch's global generators reserved for one network.

    Layers can draw only from the global generators: dropout, stochastic depth, ``torch.rand`` in a forward pass. For
    each pass these are set to the stream's state and restored afterwards. This works for any layer, leaves the
    process's own draws unaffected, and costs a few microseconds per pass.

    Parameters
    ----------
    device : torch.device
        The network's device. On a GPU, layers may draw from its generator and the CPU's.
    """

    def __init__(self, device: torch.device) -> None:
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[torch.device(device).index])
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Restart the stream; the seed is in [0, 2^63)."""
        self._seed = seed
        self._states: list[Tensor] = []  # empty: start from the seed

    @contextmanager
    def active(self, training: bool) -> Iterator[None]:
        """Make all draws inside come from this stream.

        Parameters
        ----------
        training : bool
            False: start at a fixed seed and leave the stream unchanged, so that layers that draw in evaluation draw the
            same in every pass.
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
