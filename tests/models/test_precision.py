"""bfloat16 only where a device has it, and what is set of a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from edelweiss.models import Architecture, precision, prepare

CPU = torch.device("cpu")


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bool]]:
    """Return what this machine is taken to be capable of: nothing yet."""
    found: dict[str, bool] = {}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    precision.computes_bf16.cache_clear()
    yield found
    precision.computes_bf16.cache_clear()


def product(amp: str) -> torch.Tensor:
    ones = torch.ones(2, 2)
    with Architecture(amp=amp).autocast(CPU):
        return ones @ ones


def test_without_instructions_for_it_a_run_computes_in_float32_and_says_so_once(
    able: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    assert [product("bf16").dtype for _ in range(3)] == [torch.float32] * 3
    assert len(caplog.messages) == 1
    assert 'amp = "bf16": this CPU has no instructions' in caplog.text
    assert "float32" in caplog.text


def test_a_worker_leaves_it_to_its_coordinator_to_say_so(
    able: dict[str, bool], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multiprocessing.parent_process", lambda: "the coordinator")
    assert product("bf16").dtype == torch.float32
    assert not caplog.messages


@pytest.mark.parametrize("instructions", ["amx_bf16", "avx512_bf16", "bf16"])
def test_with_them_it_does_not_and_says_nothing(
    able: dict[str, bool], instructions: str, caplog: pytest.LogCaptureFixture
) -> None:
    able |= {"amx_bf16": False, "avx512_bf16": False, instructions: True}
    assert product("bf16").dtype == torch.bfloat16
    assert product("").dtype == torch.float32
    assert not caplog.messages


@pytest.fixture
def settings() -> Iterator[None]:
    """Set PyTorch back as it was."""
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
def test_a_gpu_is_to_give_the_same_bits_and_takes_tf32_only_where_a_run_says_so() -> None:
    cudnn = torch.backends.cudnn
    for wanted, short in (("high", True), ("highest", False), ("high", True)):
        cudnn.benchmark = True
        prepare("cuda:1", wanted)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32) == (True, False, short)
        assert torch.backends.cuda.matmul.allow_tf32 == short
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.usefixtures("settings")
def test_nothing_is_set_for_a_cpu() -> None:
    torch.backends.cudnn.deterministic = False
    prepare("cpu", "high")
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic
    assert torch.get_float32_matmul_precision() == "highest"
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
