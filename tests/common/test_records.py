"""Typed records on the wire: what one side writes into a ``ConfigRecord`` is what the other reads."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import hypothesis.strategies as st
import pytest
from flwr.app import ConfigRecord
from hypothesis import given

from edelweiss.common import from_record, to_record
from edelweiss.datasets import DataSummary, Facts

COUNT = st.integers(0, 2**53)
NUMBER = st.floats(allow_nan=False)
VALUES: dict[str, st.SearchStrategy[Any]] = {  # by the annotation of a field
    "str": st.text(),
    "int": st.integers(-1, 2**53),
    "float": NUMBER,
    "Optional[int]": st.none() | COUNT,
    "tuple[str, ...]": st.lists(st.text(), max_size=5).map(tuple),
    "tuple[int, ...]": st.lists(COUNT, max_size=5).map(tuple),
    "tuple[float, ...]": st.lists(NUMBER, max_size=5).map(tuple),
}


def kind_of(hint: Any) -> str:
    """How a type is written, without what pydantic checks of it."""
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def records(cls: type) -> st.SearchStrategy[Any]:
    """Any instance of a dataclass; a field of a type that is not above is an error."""
    return st.builds(cls, **{name: VALUES[kind_of(hint)] for name, hint in get_type_hints(cls).items()})


@pytest.mark.slow
@given(records(Facts) | records(DataSummary))
def test_what_is_written_is_read(written: Facts | DataSummary) -> None:
    record = ConfigRecord(to_record(written))
    assert from_record(type(written), dict(record)) == written
    assert not [key for key, value in record.items() if "_" in key or value is None]


@pytest.mark.parametrize("record", [Facts(), DataSummary()])
def test_what_is_missing_takes_its_default(record: Facts | DataSummary) -> None:
    assert from_record(type(record), {}) == record


@pytest.mark.slow
@given(records(DataSummary))
def test_other_entries_of_a_record_are_somebody_elses(data_summary: DataSummary) -> None:
    record = ConfigRecord({"round": 3, "app": "0123456789ab", **to_record(data_summary), "name": "north"})
    assert from_record(DataSummary, dict(record)) == data_summary
