"""A site that has joined: how often it looks for work, and what it gives back between runs."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from flwr.app import Message

from client_app.connection import JoinConfig
from client_app.fleet import Fleet
from client_app.join import LONGEST, SOON, Joined, Stop


class Quiet(Stop):
    """Never told to end, until it has waited so often; notes for how long."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._times = times

    def wait(self, seconds: float) -> None:
        """Wait for no time."""
        self.waits.append(seconds)
        if len(self.waits) == self._times:
            self._event.set()


def test_it_looks_after_20_ms_while_there_is_work_and_then_ever_less_often_up_to_3_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = [True, True, *[False] * 60, True, False]
    config = JoinConfig.read("", {"superlink": "127.0.0.1:1", "insecure": True})
    site, stop, looks = Joined(config), Quiet(len(work)), iter(work)
    monkeypatch.setattr(site, "answer_next", lambda fleet: next(looks))
    site.serve(cast("Fleet", cast("Any", None)), stop)
    waits = stop.waits
    assert SOON == waits[0] == waits[1] == 0.02
    idle = waits[1:62]
    assert all(a < b or a == b == LONGEST for a, b in pairwise(idle))
    assert idle[-1] == LONGEST == 3.0
    assert sum(wait for wait in idle if wait < LONGEST) < 60, "it gets there within a minute"
    assert waits[62] == SOON < waits[63] < 2 * SOON


def test_between_runs_the_memory_of_the_gpu_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run's last message; and where its end is never heard of, when another one begins."""
    emptied: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("it"))
    monkeypatch.setattr("client_app.app.call", lambda message, context: message)
    site = Joined(JoinConfig.read("", {"superlink": "127.0.0.1:1", "insecure": True}))
    fleet = cast("Fleet", SimpleNamespace(node_id=1, run_config=lambda run_id: {}))
    counts = []
    for run_id, kind in ((1, "query"), (1, "train"), (1, "train"), (2, "query"), (2, "train"), (2, "evaluate")):
        about = SimpleNamespace(run_id=run_id, message_type=kind)
        site.answer(fleet, cast("Message", SimpleNamespace(metadata=about)))
        counts.append(len(emptied))
    begun = counts[0]
    assert [count - begun for count in counts] == [0, 0, 0, 1, 1, 2]
