"""Tests of this machine: disk, memory and device."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edelweiss.client_app.connection import JoinConfig, root_problem
from edelweiss.client_app.doctor import Finding
from edelweiss.client_app.doubts import copy_doubt
from edelweiss.common import ConfigError

LITTLE = 2e9  # bytes of disk or memory below which there is a warning


def examine_state(config: JoinConfig) -> Iterator[Finding]:
    """Try to write to the state folder, as a user who is no root."""
    if problem := root_problem():
        about, _, text = problem.partition(": ")
        yield Finding("error", about, text)
    if not config.state_dir:
        text = "none: the site's memory would be lost with this machine; set state-dir to a folder"
        yield Finding("warning", "state", text)
        return
    folder = Path(config.state_dir).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        text = f"{folder} cannot be written ({error.strerror}): it must belong to user {os.getuid()}"
        yield Finding("error", "state", text)
        return
    if doubt := copy_doubt(folder):
        yield Finding("error", "state", doubt)
    free = shutil.disk_usage(folder).free
    yield _room("state", free, f"{folder} can be written", "make room, or name another folder")
    if Path("/dev/shm").is_dir():
        yield _room("/dev/shm", shutil.disk_usage("/dev/shm").free, "is there", "no site needs it", enough=0)


def _room(about: str, free: float, what: str, fix: str, enough: float = LITTLE) -> Finding:
    text = f"{what}, {free / 1e9:,.1f} GB are free"
    return Finding("ok", about, text) if free >= enough else Finding("warning", about, f"{text}: {fix}")


def examine_device(config: JoinConfig) -> Iterator[Finding]:
    """Test the memory and the device."""
    import torch

    from edelweiss.common.memory import free_memory
    from edelweiss.models import resolve_device

    yield _room("memory", free_memory(), "of this machine", "end other programs")
    try:
        device = resolve_device(config.device or "auto")
    except ConfigError as error:
        yield Finding("error", "device", "; ".join(error.problems))
        return
    if device.startswith("cuda"):
        name, (free, _) = torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)
        yield _room("device", free, f"{device}, {name}", "end other programs on this GPU")
    elif shutil.which("nvidia-smi"):
        text = f"{device}, though this machine has an NVIDIA driver: torch {torch.__version__} sees no GPU. Give the "
        yield Finding("warning", "device", text + "container its GPU, and build the image with CUDA")
    else:
        yield Finding("ok", "device", f"{device}, torch {torch.__version__}")
