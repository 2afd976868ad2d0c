"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute with one thread: batches are tiny, and threads that wait for a busy core make them ten times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def curves() -> None:
    """Let the runs of a test draw their curves."""


@pytest.fixture(autouse=True)
def no_curves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save half a second per run, which is most of its time, where curves are not what a test is about."""
    if "curves" not in request.fixturenames:
        monkeypatch.setattr("server_app.report.draw", lambda *_, **__: None)
