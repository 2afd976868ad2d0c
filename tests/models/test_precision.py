"""bfloat16 only where supported, and the setup of a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from edelweiss.models import Architecture, precision, prepare_device

CPU = torch.device("cpu")


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bool]]:
    """Replace the capabilities of this machine, initially none."""
    found: dict[str, bool] = {}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    precision.supports_bf16.cache_clear()
    yield found
    precision.supports_bf16.cache_clear()


def product(amp: str) -> torch.Tensor:
    ones = torch.ones(2, 2)
    with Architecture(amp=amp).autocast(CPU):
        return ones @ ones


def test_without_support_it_computes_in_float32_and_warns_once(
    able: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    assert [product("bf16").dtype for _ in range(3)] == [torch.float32] * 3
    assert len(caplog.messages) == 1


def test_a_worker_does_not_repeat_the_warning(
    able: dict[str, bool], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multiprocessing.parent_process", lambda: "the coordinator")
    assert product("bf16").dtype == torch.float32
    assert not caplog.messages


@pytest.mark.parametrize("instructions", ["amx_bf16", "avx512_bf16", "bf16"])
def test_with_support_it_computes_in_bfloat16_without_a_warning(
    able: dict[str, bool], instructions: str, caplog: pytest.LogCaptureFixture
) -> None:
    able |= {"amx_bf16": False, "avx512_bf16": False, instructions: True}
    assert product("bf16").dtype == torch.bfloat16
    assert product("").dtype == torch.float32
    assert not caplog.messages


@pytest.fixture
def settings() -> Iterator[None]:
    """Restore PyTorch's settings."""
    cudnn, variable = torch.backends.cudnn, os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, torch.get_float32_matmul_precision()
    yield
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, precision_before = before
    torch.set_float32_matmul_precision(precision_before)
    torch.use_deterministic_algorithms(False)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if variable is not None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = variable


@pytest.mark.usefixtures("settings")
def test_a_gpu_is_deterministic_and_uses_tf32_only_on_request() -> None:
    cudnn = torch.backends.cudnn
    for wanted, short in (("high", True), ("highest", False), ("high", True)):
        cudnn.benchmark = True
        prepare_device("cuda:1", wanted)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32) == (True, False, short)
        assert torch.backends.cuda.matmul.allow_tf32 == short
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.usefixtures("settings")
def test_a_cpu_needs_no_setup() -> None:
    torch.backends.cudnn.deterministic = False
    prepare_device("cpu", "high")
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic
    assert torch.get_float32_matmul_precision() == "highest"
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
