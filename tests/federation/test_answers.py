"""What an evaluation may be over: no more than its site has told before the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from flwr.app import ConfigRecord, RecordDict

from edelweiss.datasets import wrong_facts
from edelweiss.federation import BadReplyError, Site
from edelweiss.federation.replies import ReplyChecker
from tests.said import has

if TYPE_CHECKING:
    from flwr.app import Message

    from edelweiss.federation.run_messages import RunMessages

HELD_OUT = 10


@pytest.mark.parametrize("n", [1, HELD_OUT - 1, HELD_OUT, HELD_OUT + 1, 10**6])
def test_an_evaluation_is_over_no_more_samples_than_are_held_out(n: int) -> None:
    """Pooled numbers weigh sites by it: whoever says more counts for more."""
    site = Site(0, "north", 1, held_out=HELD_OUT)
    content = RecordDict({"metrics": ConfigRecord({"loss": 0.5, "n": n})})
    said = cast("Message", SimpleNamespace(content=content))
    answers = ReplyChecker(cast("RunMessages", None))  # a last evaluation has no vectors
    if n <= HELD_OUT:
        answers.to_the_end(site, said, said)
    else:
        with pytest.raises(BadReplyError, check=has(f"n = {n}", HELD_OUT)):
            answers.to_the_end(site, said, said)


@pytest.mark.parametrize("counts", [[4, 6], [4, 7], [4, 5], [10**9, 0], [0, 10], []])
def test_counts_per_class_add_up_to_what_is_held_out(counts: list[int]) -> None:
    record: dict[str, Any] = {
        "name": "north",
        "partition-id": -1,
        "examples": 20,
        "held-out": HELD_OUT,
        "missing": 0,
        "class-counts": [9, 11],
        "held-out-counts": counts,
        "label-counts": [],
        "label-positives": [],
        "classes": 2,
        "shape": [3],
        "columns": "",
        "patients": [],
        "count": [],
        "total": [],
        "squares": [],
        "notes": [],
        "warnings": [],
    }
    wrong = wrong_facts(record, 1, needs_data=True, multiclass=True)
    assert bool(wrong) == (bool(counts) and sum(counts) != HELD_OUT)
    assert all("held-out-counts" in text for text in wrong)
