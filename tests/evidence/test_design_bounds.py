"""Design effects stay within the bounds that the coordinator accepts, even with few patients or cancelling sums."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from edelweiss.common import Schema, record_errors
from edelweiss.common.schema import several
from edelweiss.evidence.design import Design, largest_effect
from edelweiss.evidence.reported import EFFECT


@pytest.mark.parametrize("patients", [1, 2, 3, 4])
def test_design_effects_are_in_bounds(patients: int) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        patient_of = np.repeat(np.arange(patients), rng.integers(1, 5, patients))
        labels = rng.integers(0, 2, len(patient_of)).astype(float)
        if seed % 2:  # one sample of each class per patient, so that sums over patients cancel
            patient_of, labels = np.repeat(np.arange(patients), 2), np.tile([0.0, 1.0], patients)
        scores = rng.normal(size=len(patient_of)) if seed % 3 else np.round(rng.normal(size=len(patient_of)))
        found = astuple(Design.of(scores, labels, patient_of))
        assert not record_errors({"effects": found}, Schema(effects=several(EFFECT))), (seed, found)
        assert max(found) <= min(2 * largest_effect(patient_of) + 1, len(patient_of)), "a larger one is refused"
