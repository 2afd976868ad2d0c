"""The numbers of evidence.json: six digits in curves, null for undefined ones."""

from __future__ import annotations

import json

import numpy as np

from edelweiss.evidence.summary import _as_json


def test_curves_have_six_digits_and_undefined_numbers_are_null() -> None:
    random = np.random.default_rng(0)
    curve = np.concatenate([random.random(200), 10.0 ** random.uniform(-300, 300, 200), [0.0, -1e-7, 1 / 3, 123456.5]])
    assert _as_json({"tpr": curve}) == {"tpr": [float(f"{item:.6g}") for item in curve]}
    curve[[3, 5, 7]] = np.nan, np.inf, -np.inf
    found = _as_json({"curve": [curve, (np.float64("nan"), np.float64(0.1), 3, "by", None, True)], "none": np.zeros(0)})
    assert [place for place, item in enumerate(found["curve"][0]) if item is None] == [3, 5, 7]
    assert found["curve"][1] == [None, 0.1, 3, "by", None, True]
    assert found["none"] == []
    json.dumps(found, allow_nan=False)
