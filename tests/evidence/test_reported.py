"""Records that sites report: a round trip, and the refusal of impossible values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from edelweiss.config import RunConfig
from edelweiss.evidence import Counts, Reported
from edelweiss.evidence.delong import Auroc, exact
from edelweiss.evidence.design import Design
from edelweiss.evidence.paired import Spread, merged_problems, merged_record, read_merged
from edelweiss.evidence.reported import Group
from edelweiss.problems.histogram import Histogram
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from tests.server_app.sites import job

SCORES, LABELS = np.arange(12.0), np.repeat([0.0, 1.0], 6)
GROUPS = [
    Group("sex", "f", 7, 3, (2, 4), Auroc(0.5, 0.1), (2.0, 1.5, 1.0, 4.0)),
    Group("sex", "m", 5, 3, (0, 2), Auroc(math.nan, math.nan)),
]


OTHER = Counts.of(SCORES[::-1], LABELS)


def good() -> dict[str, Any]:
    own = exact(SCORES, LABELS)
    return Reported(own, Design(1.5, 1.25, largest=4.0), GROUPS, exact(SCORES[::-1], LABELS), 0.0, OTHER).record()


def keys(problems: list[str]) -> list[str]:
    """Return the key that each problem starts with."""
    return [re.split("[ :]", text)[0].strip("'") for text in problems]


def packed(*scores: float) -> bytes:
    return Histogram.of(np.array(scores)).packed()


def test_a_record_is_read_as_it_was_written() -> None:
    record = good()
    assert Reported.wrong(record, 12, 6) == []
    again = Reported.of(ConfigRecord(record))
    assert repr(again.record()) == repr(record)
    assert again.other_counts is not None
    assert again.other_counts.centres().tolist() == SCORES.tolist()
    assert again.other_counts.positives.tolist() == LABELS[::-1].tolist()
    assert Reported.of(Reported().record()).other_counts is None


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"design": [13.0] + [1.0] * 7}, ""),
        ({"group-design-sensitivity": [1.0, 13.0]}, ""),
        ({"other-positive-scores": packed(*range(5))}, ""),
        ({"other-positive-scores": packed(*range(7))}, ""),
        ({"other-negative-scores": packed(*range(6))[:-1]}, ""),
        ({"other-negative-scores": [1]}, ""),
        ({"other-auroc": math.nan}, ""),
        ({"auroc": 1.5}, ""),
        ({"auroc": math.nan}, ""),
        ({"variance": -1.0}, ""),
        ({"design": 1.5}, ""),
        ({"design": [0.0] * 8}, ""),
        ({"group-design-largest": [1.0]}, "group-…"),
        ({"covariance": 7.0}, ""),
        ({"other-negative-scores": b""}, ""),
        ({"group-name": ["f"]}, "group-…"),
        ({"group-positives": [7, 3], "group-true-negatives": [0, 2]}, "group-auroc"),
        ({"group-positives": [0, 3], "group-true-positives": [0, 0]}, "group-auroc"),
        ({"group-positives": [8, 3]}, "group-n"),
        ({"group-n": [13, 5]}, "group-n"),
        ({"group-true-positives": [4, 0]}, "group-true-…"),
        ({"group-true-negatives": [2, 3]}, "group-true-…"),
        ({"group-name": ["\x1b[2J", "m"]}, ""),
        ({"more": 1}, ""),
    ],
    ids=str,
)
def test_an_impossible_value_is_refused_by_its_key(change: dict[str, Any], key: str) -> None:
    assert keys(Reported.wrong(good() | change, 12, 6)) == [key or next(iter(change))]


def test_one_class_has_no_auroc() -> None:
    record = Reported(exact(SCORES, LABELS)).record()
    assert keys(Reported.wrong(record, 6, 0)) == ["auroc"]


def test_a_site_that_aggregates_scores_may_omit_the_auroc() -> None:
    record = Reported().record()
    assert keys(Reported.wrong(record, 12, 6)) == ["auroc"]
    assert Reported.wrong(record, 12, 6, grouped=True) == []


def test_pooled_counts_are_read_as_they_were_written() -> None:
    both = [(Counts.of(SCORES, LABELS), OTHER), None, (OTHER, Counts.of(SCORES**2, LABELS))]
    record = merged_record(both)["merged"]
    assert merged_problems(record) == []
    read = read_merged(ConfigRecord({"merged": record})["merged"])
    assert [one is None for one in read] == [False, True, False]
    for wanted, found in zip(both, read, strict=True):
        for one, other in zip(wanted or (), found or (), strict=True):
            assert [getattr(one, kind).tolist() for kind in ("bins", "positives", "negatives")] == [
                getattr(other, kind).tolist() for kind in ("bins", "positives", "negatives")
            ]


SPREAD = Spread((2.0, 3.0), -1.0, (5, 6, 11))


@pytest.mark.parametrize(
    "change",
    [
        {"squares": [2.0]},
        {"squares": [-1.0, 0.0]},
        {"squares": [577.0, 0.0]},
        {"products": 2.5},
        {"products": float("nan")},
        {"patients": [7, 6, 11]},
        {"patients": [0, 6, 6]},
        {"patients": [5, 6, 12]},
        {"more": 1},
    ],
    ids=str,
)
def test_an_impossible_comparison_is_refused_by_its_key(change: dict[str, Any]) -> None:
    record = SPREAD.record()
    assert Spread.of(ConfigRecord(record)) == SPREAD
    assert Spread.wrong(record, 12, 6) == []
    assert keys(Spread.wrong(record | change, 12, 6)) == [*change]


class TamperingGrid(LocalGrid):
    """The local engine, with one site that reports a changed record."""

    change: tuple[str, Any] = ("", 0)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies, one of them changed."""
        answers = list(super().pull_messages(message_ids))
        for answer in answers:
            records = answer.content.config_records if answer.has_content() else {}
            for record in map(records.get, ("evidence", "metrics")):
                if record is not None and self.change[0] in record and answer.metadata.src_node_id == 2:
                    record[self.change[0]] = self.change[1]
        return answers


@pytest.mark.parametrize(
    "change",
    [("design", -1.0), ("positive-scores", b"\0" * 7), ("positive-scores", packed(math.inf))],
    ids=["design", "no entries", "a bin"],
)
def test_a_site_with_an_impossible_record_is_left_out(change: tuple[str, Any], tmp_path: Path, evidence: None) -> None:
    said: list[str] = []
    with TamperingGrid(RunConfig.parse(job(tmp_path, rounds=1)), unused_run_id()) as grid:
        grid.change, progress = change, Progress(quiet=True)
        progress.warn = said.append  # type: ignore[method-assign]
        result = coordinate(grid.config, grid, progress)
    assert any(f"site 'site-1' gave a bad reply: {change[0]}" in text for text in said)
    assert "site-1" not in json.loads((result.folder / "evidence.json").read_bytes())["sites"]
    assert "site-1" not in result.metrics[-1]["sites"]
