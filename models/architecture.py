"""Which network a run trains, and where it computes."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

import torch

from edelweiss.common import ConfigError, shown
from edelweiss.models.errors import ModelError
from edelweiss.models.flat import FlatNetwork
from edelweiss.models.networks import build
from edelweiss.models.precision import computes_bf16

DEVICE = re.compile("cpu|cuda(:[0-9]{1,4})?")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Everything about a network that does not depend on data.

    Attributes
    ----------
    model : str
        A name in `models.MODELS`.
    hidden : int
        The width of ``mlp``, the channels of ``conv4``.
    head : str
        The layer that the head begins with, see `FlatNetwork`.
    amp : str
        ``"bf16"`` takes gradients in bfloat16, forward and backward, where PyTorch deems it safe and the device has
        instructions for it; ``""`` does not.
    """

    model: str = "mlp"
    hidden: int = 64
    head: str = ""
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
        """Build the network, freshly initialised from the seed.

        Raises
        ------
        ModelError
            For a model that cannot take inputs of this shape, or has no such layer as ``head``.
        """
        module = build(self.model, shape, outputs, hidden=self.hidden, seed=seed)
        try:
            return FlatNetwork(module.to(device, dtype), self.head)
        except ModelError as error:
            raise ModelError(f"model = {self.model!r}, {error}") from None

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """Return the context in which a forward pass runs whose gradient is taken."""
        if self.amp == "bf16" and computes_bf16(device.type):
            return torch.autocast(device.type, torch.bfloat16)
        return contextlib.nullcontext()


def resolve_device(wanted: str) -> str:
    """Turn ``"auto"`` into CUDA where there is one, else the CPU.

    Raises
    ------
    ConfigError
        For what is no device, and for a CUDA device that is not there.
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
