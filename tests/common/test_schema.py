"""What a record may hold: values are judged as they are, and a list as its entries are, one by one."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from edelweiss.common import record_errors
from edelweiss.common.schema import NAMED, Schema, binary, number, several, whole, words

NUMBERS = [number(), number(0, 1), number(-0.5, 1.5), whole(-3, 10**6), number(0, nan=True)]
ENTRY = st.floats() | st.integers(-(2**63), 2**63) | st.booleans() | st.text(max_size=2) | st.none()
LISTS = st.lists(st.floats(0, 1)) | st.lists(st.integers(-3, 9)) | st.lists(st.floats()) | st.lists(ENTRY)


def fits(kind: Any, value: object) -> bool:
    return not record_errors({"key": value}, Schema(key=kind))


@given(st.sampled_from(NUMBERS), LISTS)
@example(number(), [1e308] * 3)  # their sum is infinite
@example(number(0, nan=True), [0.0, float("nan")])
@example(number(), [10**400])
@example(number(), [1.0, -(10**400)])
@example(number(0), [True, False])
@example(number(0, 1), [0, 0.5, 2])
@example(number(-0.5, 1.5), [-0.25, 1.25])
def test_a_list_fits_if_each_of_its_entries_does(kind: Any, values: list[object]) -> None:
    assert fits(several(kind), values) == all(fits(kind, value) for value in values)


@given(st.floats(), st.floats(-10, 10), st.floats(0, 10), st.booleans())
def test_a_number_is_finite_and_within_its_ends(value: float, low: float, width: float, nan: bool) -> None:
    allowed = low <= value <= low + width or (nan and math.isnan(value))
    assert fits(number(low, low + width, nan=nan), value) == allowed


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (whole(0, 3), [0, 3], [-1, 4, 1.0, True, "1", None]),
        (number(0, 3), [0, 3, 1.5], [-1, 3.1, True, "1", math.nan, math.inf, 10**400]),
        (number(nan=True), [math.nan, 0], [math.inf, -math.inf, True]),
        (words(3), ["", "a b", "äöü"], ["abcd", "a\n", "\x00", b"a", 1, "\ud800"]),
        (words(3, pattern="^[a-z]+$"), ["abc"], ["", "A", "ab\n", "a b"]),
        (binary(4), [b"", bytes(8)], [bytes(3), "abcd", [0, 0, 0, 0]]),
        (several(whole(0, 9), (0, 2)), [[], [1, 2], (1, 2)], [[1], [1, 2, 3], "12", 3, [1, "2"]]),
        (several(whole(0, 9), most=2), [[], [1, 2]], [[1, 2, 3]]),
    ],
)
def test_a_value_fits_its_type_and_is_not_converted(kind: Any, good: list[object], bad: list[object]) -> None:
    assert [value for value in good if not fits(kind, value)] == []
    assert [value for value in bad if fits(kind, value)] == []


def test_each_key_is_named_once_and_strangers_are_not_all_listed() -> None:
    schema = Schema(a=several(whole(0, 9)), b=whole(0, 9), c=words(), d=words())
    wrong = record_errors({"a": [-1] * 10**5, "b": "x", **{f"x{n}": 0 for n in range(9)}}, schema, optional=["d"])
    assert len(wrong) == NAMED + 3
    assert [text.split()[0] for text in wrong[-3:]] == ["a", "b", "c"]
    assert max(map(len, wrong)) < 200
