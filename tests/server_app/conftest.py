"""No leftovers, and an algorithm that misbehaves on demand."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from strategies import ALGORITHMS
from tests.server_app.sites import Sabotage


@pytest.fixture
def sabotaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the algorithm known; worker processes are forked and know it, too."""
    monkeypatch.setitem(ALGORITHMS, Sabotage.name, Sabotage)


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that every run, however it ended, left no process and no folder but its run folder."""
    made: list[str] = []
    make = tempfile.mkdtemp

    def noting(*arguments: str | None, **keywords: str | None) -> str:
        made.append(make(*arguments, **keywords))
        return made[-1]

    monkeypatch.setattr("server_app.local.tempfile.mkdtemp", noting)
    yield
    monkeypatch.undo()
    assert [child for child in multiprocessing.active_children() if child.is_alive()] == []
    assert [folder for folder in made if Path(folder).exists()] == []
