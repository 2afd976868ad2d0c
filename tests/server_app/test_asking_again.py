"""A site that dies, stalls or is restarted with a message at hand: asked again when it is back, with the same bits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo

from edelweiss.client_app.app import call
from edelweiss.config import RunConfig
from edelweiss.federation import TooFewRepliesError, delivery
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from tests.said import has, lines, warnings
from tests.server_app.sites import saddle_job

VICTIM = 3  # node of site-2
UNAVAILABLE = {"reply": 4, "message": 3}  # flwr's ErrorCode; all else is 5, node unavailable
FOR_EVER = 10**6


class Unsteady(LocalGrid):
    """The local engine as if behind a SuperLink: one site's message gets lost, in one of several ways.

    Attributes
    ----------
    harm : str
        "before", "reply" or "message": the site is away before it did its work, or after; "refused": the SuperLink
        takes no message for it; "restarted": the message is lost with the process, and nobody says so, and the next
        answers come late; "between": it is restarted after its answer, and the next ones come late; "popped": the
        SuperLink goes away as it gives the answer out, and nobody has it; "unlisted": it is at work, and missing.
    when : (int, str)
        In which round, 0 before the first, and with what kind of message.
    looks : int
        How often the site is missing when somebody looks who is there.
    """

    def __init__(self, config: RunConfig, harm: str, when: tuple[int, str], looks: int = 3) -> None:
        super().__init__(config, unused_run_id())
        self.harm, self.when, self.looks = harm, when, looks
        self.missing = self.starts = 0
        self.restarted = self.late = self.broken = False
        self.asked: defaultdict[tuple[int, str], int] = defaultdict(int)

    def due(self, message: Message) -> bool:
        config = message.content.config_records["config"]
        place = (int(str(config.get("round", 0))), message.metadata.message_type)
        if message.metadata.dst_node_id != VICTIM:
            return False
        self.asked[place] += 1
        return place == self.when and self.asked[place] == 1

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identifiers = []
        self.restarted, self.late = False, self.restarted
        self.missing = max(0, self.missing - 1)
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self._identifiers))
            if self.harm == "refused" and self.due(message):
                self.missing = self.looks
                identifiers.append("")
                continue
            self._queue.append(message)
            identifiers.append(message.metadata.message_id)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        if not self._queue:
            return []
        if self.late or (self.harm == "unlisted" and self.missing):
            self.late = False
            return []
        message = self._queue.popleft()
        assert message.metadata.message_id in message_ids, "nobody waits for it"
        if self.missing and message.metadata.dst_node_id == VICTIM:
            return [Message(Error(5, "as Flower says it"), reply_to=message)]
        if self.harm == "refused" or not self.due(message):
            return [call(message, self.contexts[message.metadata.dst_node_id - 1])]
        if self.harm == "restarted":
            self.starts += 1
            self.restarted = True
            return []
        if self.harm == "unlisted":
            self.missing = self.looks
            self._queue.appendleft(message)
            return []
        if self.harm == "popped":
            call(message, self.contexts[VICTIM - 1])
            self.broken = True
            return []
        if self.harm == "between":
            self.starts += 1
            self.restarted = True
            return [call(message, self.contexts[VICTIM - 1])]
        self.missing = self.looks
        if self.harm in UNAVAILABLE:
            call(message, self.contexts[VICTIM - 1])
        return [Message(Error(UNAVAILABLE.get(self.harm, 5), "as Flower says it"), reply_to=message)]

    def interrupted(self) -> bool:
        was, self.broken = self.broken, False
        return was

    def get_nodes(self) -> Iterable[NodeInfo]:
        self.missing = max(0, self.missing - 1)
        there = [node for node in self.get_node_ids() if node != VICTIM or not self.missing]
        return [NodeInfo(node_id=node, last_activated_at=str(self.starts * (node == VICTIM))) for node in there]


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "LOOK", 0.0)
    monkeypatch.setattr(delivery, "QUICK_LOOK", 0.0)


def keys(folder: Path, **changes: Any) -> dict[str, Any]:
    job = saddle_job(folder, algorithm="codasca", **changes)
    return {key: value for key, value in job.items() if not key.startswith("local-sgda.")}


def run(job: dict[str, Any], harm: str, when: tuple[int, str], looks: int = 3) -> tuple[Result, Unsteady]:
    config = RunConfig.parse(job)
    with Unsteady(config, harm, when, looks) as grid:
        return coordinate(config, grid, Progress()), grid


def untimed(result: Result) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if "seconds" not in key} for record in result.metrics]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return simulate(keys(tmp_path_factory.mktemp("quiet")))


@pytest.mark.slow
@pytest.mark.parametrize("when", [(0, "query"), (1, "train"), (2, "train"), (4, "evaluate")])
@pytest.mark.parametrize("harm", ["before", "reply", "message", "refused", "restarted", "popped"])
def test_the_bits_are_the_same(
    tmp_path: Path, quiet: Result, harm: str, when: tuple[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    result, grid = run(keys(tmp_path, round_timeout=30.0), harm, when)  # one that nobody repeats is no endless wait
    assert grid.asked[when] == 2
    assert all(np.array_equal(result.arrays[name], vector) for name, vector in quiet.arrays.items())
    assert untimed(result) == untimed(quiet), "bytes, too: the algorithm sends its vectors once"
    assert not list(grid.states.folder.glob("run-*"))
    said = capsys.readouterr().out
    name = "'node 3'" if when[1] == "query" else "'site-2'"
    silently = harm in ("restarted", "popped")
    # Away and back, back alone, or a SuperLink that was away.
    assert len(lines(said, name)) == 2 - silently
    assert len(lines(said, name, "SuperLink")) == (harm == "popped")
    assert not warnings(said, "[left out]")


def test_a_site_that_was_restarted_after_its_answer_is_asked_once_in_each_round(tmp_path: Path, quiet: Result) -> None:
    result, grid = run(keys(tmp_path), "between", (2, "train"))
    assert grid.starts == 1
    assert set(grid.asked.values()) == {1}
    assert untimed(result) == untimed(quiet)


def test_a_site_that_nobody_sees_for_a_while_is_not_asked_again(
    tmp_path: Path, quiet: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    """A late sign of life, and the SuperLink takes it off its list: the message is at hand there all the same."""
    result, _ = run(keys(tmp_path), "unlisted", (2, "train"))
    assert untimed(result) == untimed(quiet)
    assert not lines(capsys.readouterr().out, "'site-2'")


@pytest.mark.slow
def test_at_the_beginning_a_run_waits_for_those_who_are_away_even_with_enough_answers(
    tmp_path: Path, quiet: Result
) -> None:
    """Who is left out there is left out of the whole run."""
    result, _ = run(keys(tmp_path, min_replies=3), "before", (0, "query"))
    assert untimed(result) == untimed(quiet)
    without, _ = run(keys(tmp_path, min_replies=3, round_timeout=0.5), "before", (0, "query"), FOR_EVER)
    assert [len(record["site-gradients"]) for record in without.metrics] == [3] * 4


def test_a_site_that_has_forgotten_the_run_evaluates_its_own_model_again(tmp_path: Path) -> None:
    job = keys(tmp_path) | {"algorithm": "alone"}
    result, grid = run(job, "reply", (4, "evaluate"))
    assert grid.asked[4, "evaluate"] == 2
    assert untimed(result) == untimed(simulate(job))


def test_with_enough_answers_a_run_does_not_wait_for_those_who_are_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = run(keys(tmp_path, min_replies=3), "before", (2, "train"), FOR_EVER)
    said = capsys.readouterr().out
    assert [len(record["site-gradients"]) for record in result.metrics] == [4, 3, 3, 3]
    assert len(warnings(said, "'site-2'", "[left out]")) == 4, "in three rounds and the last evaluation"
    assert len(lines(said, "'site-2'")) == 5, "that it still is away needs no line each round"
    assert len(lines(said, "3 of 4 sites")) == 4


def test_a_site_that_comes_back_takes_part_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, _ = run(keys(tmp_path, min_replies=3, rounds=6), "before", (2, "train"), 6)
    assert [len(record["site-gradients"]) for record in result.metrics] == [4, 3, 3, 4, 4, 4]
    said = capsys.readouterr().out
    assert len(lines(said, "'site-2'")) - len(warnings(said, "'site-2'")) == 2, "away, and back"


@pytest.mark.slow
def test_who_is_needed_is_waited_for_until_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(TooFewRepliesError, check=has("min-replies=3", round=2, value=3, allowed=4, sites=("site-2",))):
        run(keys(tmp_path, round_timeout=0.5), "before", (2, "train"), FOR_EVER)
