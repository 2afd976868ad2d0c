"""What a coordinator makes of a site's histograms, of one that answers its last question no more."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from federation.evidence import WIDTH, from_histogram
from problems.metrics import LIMIT, histogram

SCORES = st.lists(st.floats(-LIMIT, LIMIT - WIDTH), max_size=20)


@given(SCORES, SCORES)
def test_every_score_stands_within_half_a_bin_of_its_place(positive: list[float], negative: list[float]) -> None:
    counts = from_histogram(
        {
            f"{kind}-scores": histogram(np.array(scores))
            for kind, scores in (("positive", positive), ("negative", negative))
        }
    )
    assert (counts.positives.sum(), counts.negatives.sum()) == (len(positive), len(negative))
    for scores, those in ((positive, counts.positives), (negative, counts.negatives)):
        found = np.repeat(counts.sums / np.maximum(counts.every, 1), those.astype(int))
        assert np.abs(found - np.sort(scores)).max(initial=0) <= WIDTH / 2 + 1e-9
