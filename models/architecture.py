"""The architecture of a run's network, and the device."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

import torch

from edelweiss.common import ConfigError, shown
from edelweiss.models.errors import ModelError
from edelweiss.models.flat import FlatNetwork
from edelweiss.models.networks import build
from edelweiss.models.precision import supports_bf16

DEVICE = re.compile("cpu|cuda(:[0-9]{1,4})?")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The options of a network that do not depend on data."""

    model: str = "mlp"  # a name in `models.MODELS`
    hidden: int = 64  # the width of `mlp`, the channels of `conv4`
    head: str = ""  # the first layer of the head, see `FlatNetwork`
    # "bf16" computes gradients in bfloat16 where PyTorch deems it safe and the device supports it; "" does not
    amp: str = ""

    def network(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> FlatNetwork:
        """Build the network, initialised from the seed.

        Raises
        ------
        ModelError
            If the model cannot take inputs of this shape, or has no layer named ``head``.
        """
        module = build(self.model, shape, outputs, hidden=self.hidden, seed=seed)
        try:
            return FlatNetwork(module.to(device, dtype), self.head)
        except ModelError as error:
            raise ModelError(f"model = {self.model!r}, {error}", key=error.key, value=error.value) from None

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """Return the context for forward passes that are differentiated."""
        if self.amp == "bf16" and supports_bf16(device.type):
            return torch.autocast(device.type, torch.bfloat16)
        return contextlib.nullcontext()


def resolve_device(wanted: str) -> str:
    """Resolve ``"auto"`` to CUDA if available, else the CPU.

    Raises
    ------
    ConfigError
        If the name is not a device, or the machine lacks it.
    """
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not DEVICE.fullmatch(wanted):
        allowed = '"auto", "cpu", "cuda", "cuda:0", "cuda:1", ...'
        raise ConfigError("site", [f"device = {shown(wanted)}: allowed are {allowed}"])
    index = int(wanted.partition(":")[2] or 0)
    if wanted.startswith("cuda") and index >= (torch.cuda.device_count() if torch.cuda.is_available() else 0):
        raise ConfigError(
            "site", [f'device = {wanted!r}: this machine has {torch.cuda.device_count()} CUDA devices; use "auto"']
        )
    return wanted
