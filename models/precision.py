"""Numerical precision and determinism of the process's device."""

from __future__ import annotations

import logging
import multiprocessing
import os
from functools import cache

import torch

log = logging.getLogger("edelweiss")

BF16 = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")  # x86, x86, ARM, ARM


def prepare_device(device: str, matmul_precision: str) -> None:
    """Set up a GPU for a run, before its first computation; does nothing for a CPU.

    Selects deterministic algorithms of cuDNN and cuBLAS, so that the same seed gives the same bits on one machine.
    PyTorch warns about operations without one.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    matmul_precision : str
        ``"highest"`` computes in float32; ``"high"`` computes matrix products and convolutions in TF32, with a
        mantissa of 10 bits instead of 23.
    """
    if not device.startswith("cuda"):
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic reductions in cuBLAS
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # for debugging only
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.set_float32_matmul_precision(matmul_precision)
    torch.backends.cudnn.allow_tf32 = matmul_precision != "highest"  # PyTorch's default is True


@cache
def supports_bf16(kind: str) -> bool:
    """Whether a device, ``"cpu"`` or ``"cuda"``, supports bfloat16 natively; logs a warning if not.

    PyTorch would emulate it, slower than float32.
    """
    if kind == "cuda":
        supported = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    else:
        capabilities = torch.cpu.get_capabilities()
        supported = any(capabilities.get(name, False) for name in BF16)
    if not supported and multiprocessing.parent_process() is None:  # once, not in each worker
        device = "GPU" if kind == "cuda" else "CPU"
        log.warning('amp = "bf16": this %s does not support bfloat16, so it computes in float32', device)
    return supported
