"""The default run on rare outcomes, by the command that measures the defaults."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.defaults import DATA, RUN, Row, constants, hospital_auroc, table, written_table
from edelweiss.common import Value
from edelweiss.server_app import simulate


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["codasca", "local-sgda", "fmgda"])
def test_the_default_step_trains_at_one_percent(algorithm: str, tmp_path: Path) -> None:
    """Undivided by 4p(1-p), the loss gives 0.61 here: the step would be a twenty-fifth."""
    file = written_table(table("clean", 0.01, 0), str(tmp_path / "table.csv"))
    job = {"problem": "auc", "algorithm": algorithm, "thin-share": 0.0, "rounds": 20, "local-steps": 20}
    own = {"data-file": file, "runs-dir": str(tmp_path), "evaluate-every": 0}
    assert simulate(RUN | DATA["clean"] | job | own).metrics[-1]["central"]["auroc"] >= 0.8


@pytest.mark.slow
def test_three_small_hospitals_arrive_by_default_and_with_a_shorter_step_after_more_rounds() -> None:
    """Eighty steps of a third of the default's length are too few; neither the data nor the method is what lacks."""
    short: dict[str, Value] = {"codasca.lr": 0.1}
    usual, few, more = (hospital_auroc(2, own) for own in ({}, short, {**short, "rounds": 40}))
    assert min(usual, more) > max(few, 0.78)


def test_a_constant_is_counted_where_it_is_level_near_and_tried() -> None:
    every = [
        Row("clean-0.1-mlp", "codasca", 10, 1, {0.03: 0.7, 0.1: 0.8, 0.3: 0.805, 1.0: 0.6, 3.0: math.nan}),
        Row("clean-0.1-linear", "codasca", 10, 1, {0.1: 0.81, 0.3: 0.802, 1.0: 0.75}),
    ]
    text = constants(every)
    assert (
        "| clean, 200 steps | 2 | 0, 0 of 1; 0.105 | 2, 2; 0.005 | 2, 2; 0.008 | 0, 1; 0.205 | 0, 0 of 1; ∞ |" in text
    )
    assert text.startswith("Level in all rows: 0.1, 0.3.")
    more = [Row("hard-0.1-mlp", "fmgda", 10, 1, means) for means in ({0.1: 0.8, 0.3: 0.7}, {0.1: 0.7, 0.3: 0.8})]
    assert constants([*every, *more]).startswith("No single constant does")
