"""What a site tells: it can be written and read, and what cannot be true of it is named."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from edelweiss.config import RunConfig
from edelweiss.evidence import Counts, Told
from edelweiss.evidence.delong import Auroc, exact
from edelweiss.evidence.design import Design
from edelweiss.evidence.paired import Spread, merged_of, merged_record, wrong_merged
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
    return Told(own, Design(1.5, 1.25, largest=4.0), GROUPS, exact(SCORES[::-1], LABELS), 0.0, OTHER).record()


def packed(*scores: float) -> bytes:
    return Histogram.of(np.array(scores)).packed()


def test_what_is_told_is_read_again() -> None:
    record = good()
    assert Told.wrong(record, 12, 6) == []
    again = Told.of(ConfigRecord(record))
    assert repr(again.record()) == repr(record)
    assert again.other_counts is not None
    assert again.other_counts.centres().tolist() == SCORES.tolist()
    assert again.other_counts.positives.tolist() == LABELS[::-1].tolist()
    assert Told.of(Told().record()).other_counts is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"design": [13.0] + [1.0] * 7}, "a design effect is more than 12"),
        ({"group-design-sensitivity": [1.0, 13.0]}, "a design effect is more than 12"),
        ({"other-positive-scores": packed(*range(5))}, "other-positive-scores: its counts add up to 5: it has 6"),
        ({"other-positive-scores": packed(*range(7))}, "other-positive-scores: 56 bytes: must be 8 for each bin"),
        ({"other-negative-scores": packed(*range(6))[:-1]}, "other-negative-scores = b'"),
        ({"other-negative-scores": [1]}, "other-negative-scores = [1]: must be bytes"),
        ({"other-auroc": math.nan}, "other-auroc = nan: it has samples of both"),
        ({"auroc": 1.5}, "auroc = 1.5: must be"),
        ({"auroc": math.nan}, "auroc = nan: it has samples of both classes"),
        ({"variance": -1.0}, "variance = -1.0"),
        ({"design": 1.5}, "design = 1.5: must be a list of 8"),
        ({"design": [0.0] * 8}, "design = [0.0"),
        ({"group-design-largest": [1.0]}, "have not the same length"),
        ({"covariance": 7.0}, "covariance = 7.0"),
        ({"other-negative-scores": b""}, "other-negative-scores: its counts add up to 0: it has 6"),
        ({"group-name": ["f"]}, "have not the same length"),
        ({"group-positives": [7, 3], "group-true-negatives": [0, 2]}, "the AUROC of a subgroup of one class is 0.5"),
        ({"group-positives": [8, 3]}, "more positives than samples"),
        ({"group-n": [13, 5]}, "more samples than the site"),
        ({"group-true-positives": [4, 0]}, "more true positives than positives"),
        ({"group-true-negatives": [2, 3]}, "more true negatives than negatives"),
        ({"group-name": ["\x1b[2J", "m"]}, "group-name"),
        ({"more": 1}, "'more' is no key"),
    ],
    ids=str,
)
def test_what_cannot_be_is_named(change: dict[str, Any], said: str) -> None:
    [line] = Told.wrong(good() | change, 12, 6)
    assert said in line


def test_one_class_has_no_auroc() -> None:
    record = Told(exact(SCORES, LABELS)).record()
    assert Told.wrong(record, 6, 0) == ["auroc = 1.0: it has samples of one class"]


def test_who_tells_of_groups_need_not_tell_the_auroc() -> None:
    record = Told().record()
    assert Told.wrong(record, 12, 6) == ["auroc = nan: it has samples of both classes"]
    assert Told.wrong(record, 12, 6, grouped=True) == []


def test_counts_of_all_sites_are_read_as_they_were_written_label_by_label() -> None:
    both = [(Counts.of(SCORES, LABELS), OTHER), None, (OTHER, Counts.of(SCORES**2, LABELS))]
    record = merged_record(both)["merged"]
    assert wrong_merged(record) == []
    read = merged_of(ConfigRecord({"merged": record})["merged"])
    assert [one is None for one in read] == [False, True, False]
    for wanted, found in zip(both, read, strict=True):
        for one, other in zip(wanted or (), found or (), strict=True):
            assert [getattr(one, kind).tolist() for kind in ("bins", "positives", "negatives")] == [
                getattr(other, kind).tolist() for kind in ("bins", "positives", "negatives")
            ]


SPREAD = Spread((2.0, 3.0), -1.0, (5, 6, 11))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"squares": [2.0]}, "squares = [2.0]: must be a list of 2"),
        ({"squares": [-1.0, 0.0]}, "squares = [-1.0, 0.0]"),
        ({"squares": [577.0, 0.0]}, "squares = [577.0, 0.0]"),
        ({"products": 2.5}, "products = 2.5: more than squares"),
        ({"products": float("nan")}, "products = nan"),
        ({"patients": [7, 6, 11]}, "7 have 6 positive samples"),
        ({"patients": [0, 6, 6]}, "0 have 6 positive samples"),
        ({"patients": [5, 6, 12]}, "so many have one class, the other, any"),
        ({"more": 1}, "'more' is no key"),
    ],
    ids=str,
)
def test_a_comparison_that_cannot_be_is_named(change: dict[str, Any], said: str) -> None:
    record = SPREAD.record()
    assert Spread.of(ConfigRecord(record)) == SPREAD
    assert Spread.wrong(record, 12, 6) == []
    assert said in Spread.wrong(record | change, 12, 6)[0]


class Lying(LocalGrid):
    """The local engine, where one site changes what it tells of the scores."""

    change: tuple[str, Any] = ("", 0)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return answers, one of them changed."""
        answers = list(super().pull_messages(message_ids))
        for answer in answers:
            records = answer.content.config_records if answer.has_content() else {}
            for told in map(records.get, ("evidence", "metrics")):
                if told is not None and self.change[0] in told and answer.metadata.src_node_id == 2:
                    told[self.change[0]] = self.change[1]
        return answers


@pytest.mark.parametrize(
    "change",
    [("design", -1.0), ("positive-scores", b"\0" * 7), ("positive-scores", packed(math.inf))],
    ids=["design", "no entries", "a bin"],
)
def test_a_site_that_tells_what_cannot_be_costs_its_part_and_not_the_run(
    change: tuple[str, Any], tmp_path: Path, evidence: None
) -> None:
    said: list[str] = []
    with Lying(RunConfig.parse(job(tmp_path, rounds=1)), unused_run_id()) as grid:
        grid.change, progress = change, Progress(quiet=True)
        progress.warn = said.append  # type: ignore[method-assign]
        result = coordinate(grid.config, grid, progress)
    assert any(f"site 'site-1' gave a bad answer: {change[0]}" in text for text in said)
    assert "site-1" not in json.loads((result.folder / "evidence.json").read_bytes())["sites"]
    assert "site-1" not in result.metrics[-1]["sites"]
