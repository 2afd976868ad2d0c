"""When the coordinator looks for answers: seldom while nobody can have finished, often when they are nearly due.

And until when: its time is one for all answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from flwr.app import Message

from edelweiss.config import RunConfig
from edelweiss.federation import delivery
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from tests.server_app.sites import saddle_job

WORK = 40.0  # seconds until a site has answered


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0, "nobody may look twice at the same time"
        self.now += seconds


class Slow(LocalGrid):
    """The local engine whose sites need time for each message, all at once.

    Attributes
    ----------
    looks : list of list of float
        For each set of messages, the seconds from sending it to each look, up to the first that finds an answer.
    """

    def __init__(self, config: RunConfig, clock: Clock) -> None:
        super().__init__(config, unused_run_id())
        self.clock, self.sent, self.looks = clock, 0.0, list[list[float]]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.sent = self.clock.now
        self.looks.append([])
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        after = self.clock.now - self.sent
        if not self.looks[-1] or self.looks[-1][-1] < WORK:
            self.looks[-1].append(after)
        return super().pull_messages(message_ids) if after >= WORK else []


def test_from_the_second_time_on_it_looks_often_when_the_answers_are_nearly_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kind of message took the last time is how long it is likely to take again."""
    clock = Clock()
    monkeypatch.setattr(delivery, "time", clock)
    config = RunConfig.parse(saddle_job(tmp_path, rounds=4))
    with Slow(config, clock) as grid:
        coordinate(config, grid, Progress())
    _, first, *later, _ = grid.looks  # a query, the rounds, the last evaluation
    assert len(later) == config.rounds - 1
    assert first[-1] - first[-2] == pytest.approx(delivery.LONGEST_WAIT)
    for looks in later:
        assert looks[-1] - WORK <= looks[-1] - looks[-2] < 0.01 * WORK
        assert len(looks) < 2 * len(first), "and is not busy with it"


class InTurn(LocalGrid):
    """The local engine whose sites train one after the other.

    Attributes
    ----------
    sent : list of float
        When messages left.
    """

    def __init__(self, config: RunConfig, clock: Clock) -> None:
        super().__init__(config, unused_run_id())
        self.clock, self.due, self.sent = clock, 0.0, list[float]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.sent.append(self.clock.now)
        self.due = self.clock.now + WORK if messages[0].metadata.message_type == "train" else math.inf
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        if self.clock.now < self.due < math.inf:
            return []
        self.due += WORK
        return super().pull_messages(message_ids)


def test_an_answer_in_time_does_not_buy_the_others_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(delivery, "time", clock)
    config = RunConfig.parse(saddle_job(tmp_path, rounds=2, min_replies=2, round_timeout=2.5 * WORK))
    with InTurn(config, clock) as grid:
        result = coordinate(config, grid, Progress(quiet=True))
    assert [len(record["site-gradients"]) for record in result.metrics] == [2, 2]
    _, *rounds, last = grid.sent
    assert [after - before for before, after in pairwise([*rounds, last])] == pytest.approx([2.5 * WORK] * 2)
