"""No leftovers, and an algorithm that misbehaves on demand."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest

from edelweiss.common.scratch import Scratch
from edelweiss.strategies import ALGORITHMS
from tests.server_app.sites import Sabotage


@pytest.fixture
def sabotaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the algorithm known; worker processes are forked and know it, too."""
    monkeypatch.setitem(ALGORITHMS, Sabotage.name, Sabotage)


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that every run, however it ended, left no process and no folder but its run folder."""
    made: list[Path] = []

    class Noted(Scratch):
        def __init__(self, place: str | None = None) -> None:
            super().__init__(place)
            made.append(self.path)

    monkeypatch.setattr("edelweiss.server_app.local.Scratch", Noted)
    yield
    monkeypatch.undo()
    assert [child for child in multiprocessing.active_children() if child.is_alive()] == []
    assert [folder for folder in made if folder.exists()] == []
