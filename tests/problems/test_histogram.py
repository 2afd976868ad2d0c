"""The grid of scores: order, exactness, what is told of it, and what a lying site could say."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from edelweiss.problems.histogram import LAST, Histogram, bins_of, scores_of, wrong

FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40)


@settings(deadline=None, max_examples=200)
@given(FLOATS)
def test_scores_have_a_bin_each_in_their_order(scores: list[float]) -> None:
    values = np.array(scores)
    bins = bins_of(values)
    assert scores_of(bins).tolist() == (values + 0.0).tolist()
    assert (np.sign(np.subtract.outer(bins, bins)) == np.sign(np.subtract.outer(values, values))).all()
    found = Histogram.of(values)
    assert np.repeat(scores_of(found.bins), found.counts).tolist() == sorted(values.tolist())
    packed = found.packed()
    assert wrong(packed, len(scores)) == wrong(packed) == ""
    assert Histogram.unpacked(packed).packed() == packed


def test_scores_outside_float32_are_clipped() -> None:
    values = np.array([-math.inf, -1e300, math.nan, -0.0, 0.0, 1e-300, 1e300, math.inf])
    assert bins_of(values).tolist() == [-LAST, -LAST, 0, 0, 0, 0, LAST, LAST]


@settings(deadline=None, max_examples=50)
@given(st.lists(FLOATS, max_size=4))
def test_histograms_add_up(parts: list[list[float]]) -> None:
    total = Histogram.total([Histogram.of(np.array(part, float)) for part in parts])
    assert total.packed() == Histogram.of(np.array([score for part in parts for score in part], float)).packed()


def data(bins: list[int], counts: list[int]) -> bytes:
    return np.array(bins, "<i4").tobytes() + np.array(counts, "<u4").tobytes()


@pytest.mark.parametrize(
    "packed",
    [
        data([1, 2], [2, 2])[:-1],
        data([1, 2, 3, 4, 5], [1] * 5),
        data([2, 1], [2, 2]),
        data([1, 1], [2, 2]),
        data([1, LAST + 1], [2, 2]),
        data([-(2**31), 1], [2, 2]),
        data([1, 2], [4, 0]),
        data([1, 2], [4, 2**32 - 1]),
        b"",
    ],
    ids=["length", "too many", "descending", "repeated", "infinite", "below", "empty bin", "overflow", "empty"],
)
def test_an_impossible_histogram_is_refused(packed: bytes) -> None:
    assert wrong(data([-LAST, LAST], [3, 1]), 4) == ""
    assert wrong(packed, 4)
