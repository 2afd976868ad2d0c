"""The import of torchvision, which fails beside a CPU-only torch unless two operator schemas exist."""

from __future__ import annotations

import sys
from types import ModuleType

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: torch.library.Library | None = None  # the schemas live as long as this object


def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators cannot be loaded.

    The wheels of torchvision hold CUDA operators. Beside a CPU-only torch these do not load, and the import
    then stops because the operators ``nms`` and ``qnms`` have no schema. Only in that case the two schemas
    are defined here (without a kernel: nothing in Edelweiss calls them) and the import is repeated.

    Raises
    ------
    ImportError
        torchvision is not installed.
    """
    global _library
    try:
        import torchvision
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        _library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            _library.define(name + _SCHEMA)  # type: ignore[no-untyped-call]
        for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
            del sys.modules[module]  # what the failed import left behind
        import torchvision
    return torchvision  # type: ignore[no-any-return, unused-ignore]
