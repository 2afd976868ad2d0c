"""A design effect is one that a coordinator takes, however few patients a site has, and whatever they cancel."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from edelweiss.evidence.design import Design, most
from edelweiss.evidence.reported import EFFECT


@pytest.mark.parametrize("patients", [1, 2, 3, 4])
def test_it_is_never_what_rounding_leaves(patients: int) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        whose = np.repeat(np.arange(patients), rng.integers(1, 5, patients))
        labels = rng.integers(0, 2, len(whose)).astype(float)
        if seed % 2:  # each patient has one of each class, so sums over patients cancel
            whose, labels = np.repeat(np.arange(patients), 2), np.tile([0.0, 1.0], patients)
        scores = rng.normal(size=len(whose)) if seed % 3 else np.round(rng.normal(size=len(whose)))
        found = astuple(Design.of(scores, labels, whose))
        assert all(map(EFFECT.fits, found)), (seed, found)
        assert max(found) <= min(2 * most(whose) + 1, len(whose)), "more is refused"
