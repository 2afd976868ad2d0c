"""With how many digits a device computes, and whether twice the same: all that is set of it, for a process."""

from __future__ import annotations

import logging
import multiprocessing
import os
from functools import cache

import torch

log = logging.getLogger("edelweiss")

BF16 = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")  # of x86 two, of ARM two


def prepare(device: str, matmul_precision: str) -> None:
    """Set up a GPU for a run, before anything is computed there. Nothing to do for a CPU.

    The same seed gives the same bits on one machine: cuDNN and cuBLAS take algorithms that do. Where an operation has
    none, PyTorch warns of it.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    matmul_precision : str
        ``"highest"`` computes products of float32 with all their digits, ``"high"`` matrix products and convolutions
        in TF32, with 10 bits of the mantissa instead of 23.
    """
    if not device.startswith("cuda"):
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS adds up in any order
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nobody reads it
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.set_float32_matmul_precision(matmul_precision)
    torch.backends.cudnn.allow_tf32 = matmul_precision != "highest"  # which PyTorch allows by default


@cache
def computes_bf16(kind: str) -> bool:
    """Whether a kind of device, ``"cpu"`` or ``"cuda"``, has instructions for bfloat16; a log line says if it has not.

    PyTorch would emulate them, which takes longer than float32.
    """
    if kind == "cuda":
        able = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    else:
        capabilities = torch.cpu.get_capabilities()
        able = any(capabilities.get(name, False) for name in BF16)
    if not able and multiprocessing.parent_process() is None:  # the local engine's workers need not say it again
        device = "GPU" if kind == "cuda" else "CPU"
        log.warning('amp = "bf16": this %s has no instructions for bfloat16, so it computes in float32', device)
    return able
