"""Folders that the tests read and write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edelweiss.datasets import DataConfig

REAL_DATA = os.environ.get("EDELWEISS_DATA")


@pytest.fixture
def data_root() -> str:
    """Folder of the real data sets; the test is skipped where there is none."""
    if not REAL_DATA:
        pytest.skip("EDELWEISS_DATA is not set: it names the folder with the real data sets")
    return REAL_DATA


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the user's folders out of the tests."""
    folder = tmp_path / "cache"
    monkeypatch.delenv("EDELWEISS_DATA", raising=False)
    monkeypatch.setenv("EDELWEISS_CACHE", str(folder))
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., DataConfig]:
    """Write a site's table and return a configuration that reads it."""

    def write(text: str, name: str = "data.csv", **fields: object) -> DataConfig:
        file = tmp_path / "secret-hospital" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return DataConfig(dataset="site", data_dir=str(file.parent), **fields)  # type: ignore[arg-type]

    return write
