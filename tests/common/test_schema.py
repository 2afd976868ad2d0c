"""What a record may hold: a list is judged as its entries are, one by one."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import example, given

from edelweiss.common.schema import Number, Several

NUMBERS = [Number(), Number(0, 1), Number(0, 1, rounding=0.5), Number(-3, whole=True), Number(0, nan=True)]
ENTRY = st.floats() | st.integers(-(2**63), 2**63) | st.booleans() | st.text(max_size=2) | st.none()
LISTS = st.lists(st.floats(0, 1)) | st.lists(st.integers(-3, 9)) | st.lists(st.floats()) | st.lists(ENTRY)


@given(st.sampled_from(NUMBERS), LISTS)
@example(Number(), [1e308] * 3)  # their sum is infinite
@example(Number(0, nan=True), [0.0, float("nan")])
@example(Number(), [10**400])
@example(Number(), [1.0, -(10**400)])
@example(Number(0), [True, False])
@example(Number(0, 1), [0, 0.5, 2])
@example(Number(0, 1, rounding=0.5), [-0.25, 1.25])
def test_a_list_fits_if_each_of_its_entries_does(number: Number, values: list[object]) -> None:
    assert Several(number).fits(values) == all(map(number.fits, values))
