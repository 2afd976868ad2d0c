"""The server's y stays within its feasible set, also when the server takes longer steps than to the mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from edelweiss.common import Value
from edelweiss.server_app import simulate
from tests.server_app.sites import job

LONG_STEPS: dict[str, Value] = {"algorithm": "codasca", "codasca.lr": 0.3, "codasca.server-lr": 3.0}


@pytest.mark.parametrize("keys", [LONG_STEPS, {"algorithm": "sagda", "sagda.lr-dual": 0.3, "sagda.server-lr": 3.0}])
def test_class_weights_stay_on_the_simplex(keys: dict[str, Value], tmp_path: Path) -> None:
    result = simulate(job(tmp_path, problem="fair", dataset="digits", rounds=4) | keys)
    y = result.arrays["y"]
    assert y.min() >= 0
    assert y.sum() == pytest.approx(1, abs=1e-5)
    assert y.max() > 0.2, "it has moved from where it started, 0.1 for every class"
