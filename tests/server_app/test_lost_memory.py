"""What a site remembers vanishes from its disk: the run goes on, and says that its numbers are others now."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message

from edelweiss.client_app.memory import run_folder
from edelweiss.common import record_in
from edelweiss.server_app import simulate
from edelweiss.server_app.local import LocalGrid
from tests.said import warnings
from tests.server_app.sites import saddle_job

LOST = ("'site-1'", "round 4")


def vanish(server_round: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the newest file of one site's memory before a round."""
    push = LocalGrid.push_messages

    def after(grid: LocalGrid, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        told = record_in(messages[0].content, "config", ConfigRecord)
        if told.get("round") == server_round and messages[0].metadata.message_type == "train":
            folder = run_folder(grid.states.folder, str(told["run"])) / "site-1.memory"
            newest = max(folder.iterdir(), key=lambda file: int(file.name.partition("-")[0]))
            newest.unlink()
        return push(grid, messages)

    monkeypatch.setattr(LocalGrid, "push_messages", after)


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_every", [0, 3])  # where older ones are kept, the site goes on from one of those
@pytest.mark.parametrize("algorithm", ["codasca", "fgda"])
def test_a_memory_that_vanished_is_said(
    tmp_path: Path,
    algorithm: str,
    checkpoint_every: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = saddle_job(tmp_path, algorithm=algorithm, rounds=6, checkpoint_every=checkpoint_every)
    undisturbed = simulate(job)
    assert not warnings(capsys.readouterr().out)
    vanish(5, monkeypatch)
    harmed = simulate(job, quiet=False)
    assert len(warnings(capsys.readouterr().out, *LOST)) == 1
    assert (harmed.arrays["x"] != undisturbed.arrays["x"]).any(), "its numbers are others"


def test_a_memory_that_vanished_while_the_run_was_stopped_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed = LocalGrid.push_messages

    def stopping(grid: LocalGrid, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if record_in(messages[0].content, "config", ConfigRecord).get("round") == 5:
            raise InterruptedError
        return pushed(grid, messages)

    monkeypatch.setattr(LocalGrid, "push_messages", stopping)
    with pytest.raises(InterruptedError):
        simulate(saddle_job(tmp_path, algorithm="codasca", rounds=6) | {"run-name": "stopped"})
    monkeypatch.undo()
    monkeypatch.setattr(LocalGrid, "restore", lambda *_: None)  # as at a site whose disk was wiped
    simulate({"resume": str(tmp_path / "runs" / "stopped")}, quiet=False)
    assert warnings(capsys.readouterr().out, *LOST)
