"""What a site tells: it can be written and read, and what cannot be true of it is named."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from config import RunConfig
from evidence import Counts, Sketch, Told
from evidence.delong import Auroc, exact
from evidence.paired import Spread, merged_of, merged_record
from evidence.told import (
    Group,
    counts_of,
    counts_of_other,
    counts_record,
    grids_of,
    wrong_counts,
)
from server_app.console import Progress
from server_app.coordinator import coordinate
from server_app.local import LocalGrid, unused_run_id
from tests.server_app.sites import job

SCORES, LABELS = np.arange(12.0), np.repeat([0.0, 1.0], 6)
GROUPS = [Group("sex", "f", 7, 3, (2, 4), Auroc(0.5, 0.1)), Group("sex", "m", 5, 3, (0, 2), Auroc(math.nan, math.nan))]


def good() -> dict[str, Any]:
    sketch = Sketch.of(SCORES, LABELS)
    return Told((sketch.positives, sketch.negatives), exact(SCORES, LABELS), 1.5, GROUPS).record()


def test_what_is_told_is_read_again() -> None:
    record = good()
    assert Told.wrong(record, 12, 6) == []
    assert repr(Told.of(ConfigRecord(record)).record()) == repr(record)
    counts = Counts.of(SCORES, LABELS, np.array([0.0, 5.0, 6.0]))
    again = counts_of(ConfigRecord(counts_record(counts)))
    assert (again.positives.tolist(), again.negatives.tolist()) == ([0, 0, 6], [5, 1, 0])
    assert again.sums.tolist() == counts.sums.tolist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"positive-cuts": [2.0, 1.0]}, "positive-cuts do not ascend"),
        ({"positive-cuts": []}, "positive-cuts has 0 entries, of 6 samples"),
        ({"positive-cuts": [float(n) for n in range(7)]}, "positive-cuts = [0.0, 1.0"),
        ({"negative-cuts": [math.inf]}, "negative-cuts = [inf]"),
        ({"negative-cuts": [-1e300]}, "negative-cuts = [-1e+300]"),
        ({"auroc": 1.5}, "auroc = 1.5: must be"),
        ({"auroc": math.nan}, "auroc = nan: it has samples of both classes"),
        ({"variance": -1.0}, "variance = -1.0"),
        ({"design": 0.0}, "design = 0.0"),
        ({"covariance": 7.0}, "covariance = 7.0"),
        ({"other-positive-cuts": [1.0]}, "other-negative-cuts has 0 entries, of 6 samples"),
        ({"other-positive-cuts": [1.0], "other-negative-cuts": [0.0]}, "other-auroc = nan: it has samples of both"),
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
    record = good() | {"positive-cuts": []}
    assert "auroc = 1.0: it has samples of one class" in Told.wrong(record, 6, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"positives": [1, 2]}, "positives = [1, 2]: must be a list of 3"),
        ({"positives": [-1, 0, 7]}, "positives = [-1, 0, 7]"),
        ({"negatives": [6, 1, 0]}, "negatives add up to 7: it has 6"),
        ({"sums": [math.nan, 0.0, 0.0]}, "sums = [nan"),
    ],
    ids=str,
)
def test_counts_that_cannot_be_are_named(change: dict[str, Any], said: str) -> None:
    record = counts_record(Counts.of(SCORES, LABELS, np.array([0.0, 5.0, 6.0])))
    assert wrong_counts(record, 3, 12, 6) == []
    [line] = wrong_counts(record | change, 3, 12, 6)
    assert said in line


def test_counts_of_two_models_are_read_again_and_held_against_the_samples() -> None:
    own, other = (Counts.of(SCORES, LABELS, np.array(cuts)) for cuts in ([0.0, 6.0], [0.0, 3.0, 9.0]))
    record = counts_record(own, other)
    assert wrong_counts(record, 2, 12, 6, 3) == []
    pair = counts_of_other(record)
    assert pair is not None
    assert (pair[0].tolist(), pair[1].tolist()) == ([0, 3, 3], [3, 3, 0])
    assert counts_of_other(counts_record(own)) is None
    [line] = wrong_counts(record | {"other-positives": [0, 3, 2]}, 2, 12, 6, 3)
    assert line == "other-positives add up to 5: it has 6"
    assert "'other-positives' is no key" in wrong_counts(record, 2, 12, 6)[0], "nobody asked for them"


def test_counts_of_all_sites_are_read_as_they_were_written_label_by_label() -> None:
    def pair(*sizes: int) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(sizes[0]) + 1.0, np.arange(sizes[0]) + 10.0

    both = [(pair(2), pair(3)), (pair(0), pair(0)), (pair(1), pair(4))]
    own, other = grids_of([0.0, 1, 2], [2, 0, 1]), grids_of([0.0, 1, 2, 0, 1, 2, 3], [3, 0, 4])
    read = merged_of(merged_record(both)["merged"], (own, other))
    assert [[[kind.tolist() for kind in pair] for pair in label] for label in read] == [
        [[kind.tolist() for kind in pair] for pair in label] for label in both
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
            told = answer.content.config_records.get("evidence") if answer.has_content() else None
            if told is not None and self.change[0] in told and answer.metadata.src_node_id == 2:
                told[self.change[0]] = self.change[1]
        return answers


@pytest.mark.parametrize("change", [("design", -1.0), ("sums", [0.0])], ids=str)
def test_a_site_that_tells_what_cannot_be_costs_its_part_and_not_the_run(
    change: tuple[str, Any], tmp_path: Path, evidence: None
) -> None:
    said: list[str] = []
    with Lying(RunConfig.parse(job(tmp_path, rounds=1)), unused_run_id()) as grid:
        grid.change, progress = change, Progress(quiet=True)
        progress.warn = said.append  # type: ignore[method-assign]
        result = coordinate(grid.config, grid, progress)
    assert any(f"site 'site-1' gave a bad answer: {change[0]} = " in text for text in said)
    assert (result.folder / "evidence.json").exists()
    lost = change[0] == "design"  # in the first answer, which has the evaluation, too
    assert ("site-1" in result.metrics[-1]["sites"]) == (not lost)
