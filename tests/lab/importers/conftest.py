"""Folders that the tests read and write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
