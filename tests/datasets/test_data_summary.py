"""What a model's file says of the data that it was trained on: a schema, whoever wrote it."""

from __future__ import annotations

import json
import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edelweiss.datasets import DataSummary
from tests.said import has

NUMBER = st.floats(-1e30, 1e30)
ABOVE = st.floats(1e-30, 1e30)


@st.composite
def summaries(draw: st.DrawFn) -> DataSummary:
    shape = draw(st.sampled_from([(3,), (1,), (3, 32, 32), (1, 8, 8)]))
    classes, scaled = draw(st.integers(2, 5)), draw(st.booleans())
    each = [shape[0], shape[0]] if scaled else [0, 0]
    return DataSummary(
        shape=shape,
        classes=classes,
        prior=draw(st.floats(1e-9, 1 - 1e-9)),
        shares=tuple(draw(st.lists(st.floats(0, 1), min_size=classes, max_size=classes))) if classes > 2 else (),
        shift=tuple(draw(st.lists(NUMBER, min_size=each[0], max_size=each[0]))),
        scale=tuple(draw(st.lists(ABOVE, min_size=each[1], max_size=each[1]))),
        columns=draw(st.sampled_from(["", "0123abcd"])),
    )


WRONG: dict[str, tuple[Any, ...]] = {
    "shape": (None, 3, "3", [], [0], [-1], [3.0], ["3"], [[3]], [1, 2], [10**12], True),
    "classes": (None, "2", 0, 1, 2.0, True, 10**12, [2]),
    "prior": (None, "half", 0, 1, -0.5, 2, math.nan, math.inf, [0.5]),
    "shares": ("x", 0.5, [0.5], [math.nan, 1, 1], [2.0, -1.0], ["a", "b"]),
    "shift": ("x", 1.0, [1.0] * 9, [math.nan], ["a"], [1e300], [None]),
    "scale": ("x", 1.0, [1.0] * 9, [0.0], [-1.0], [math.inf], [1e-300], [None]),
    "columns": (None, 7, ["a"], True),
}


@pytest.mark.slow
@given(summaries(), st.data())
def test_what_was_written_is_read_and_anything_else_is_named(data_summary: DataSummary, data: st.DataObject) -> None:
    facts = json.loads(json.dumps(data_summary.facts()))
    assert DataSummary.of_file(facts | {"problem": "auc"}) == data_summary
    key = data.draw(st.sampled_from(sorted(WRONG)))
    with pytest.raises(ValueError, match=rf"^{key} |; {key} ") as refused:
        DataSummary.of_file(facts | {key: data.draw(st.sampled_from(WRONG[key]))})
    assert len(str(refused.value).splitlines()) == 1


def test_a_model_needs_a_shape() -> None:
    with pytest.raises(ValueError, check=has("shape")):
        DataSummary.of_file({"prior": 0.5})
