"""The default run on rare outcomes, by the command that measures the defaults."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import pytest

from benchmarks.defaults import DATA, GRID, RUN, Row, constants, hospital_auroc, own_default, table, written_table
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


def rows_of(method: str, clean: list[float], heavy: list[float]) -> list[Row]:
    """Return a row of each with the same AUROC of 0.1, 0.3 and 1 at all three seeds."""
    return [
        Row(f"{data}-0.05-mlp", method, 100, {step: [mean] * 3 for step, mean in zip(GRID, means, strict=True)})
        for data, means in (("clean", clean), ("heavy", heavy))
    ]


def test_a_step_is_level_or_open_by_the_differences_at_each_seed() -> None:
    row = Row("clean-0.05-mlp", "codasca", 100, {0.1: [0.7, 0.8, 0.9], 0.3: [0.69, 0.79, 0.88], 1.0: [0.9, 0.9, nan]})
    assert row.best == 0.1, "a run that diverged rules its step out, and another seed's data say nothing of a step"
    assert row.near(0.3)
    assert not row.near(1.0)
    assert row.lost(0.3) == pytest.approx(0.04 / 3)
    assert row.lost(1.0) == inf
    assert row.error(0.3) == pytest.approx(0.01 / 3)
    assert not row.level(0.3)
    assert row.open(0.3), "0.0133 ± 2 * 0.0033 reaches across 0.01"
    assert row.level(0.1)
    assert not row.open(0.1)


def test_a_method_gets_another_default_only_if_it_is_worse_on_no_data() -> None:
    better = rows_of("coda-plus", [0.80, 0.85, 0.85], [0.70, 0.75, 0.80])
    elsewhere = [*rows_of("coda-plus", [0.80, 0.85, 0.83], [0.70, 0.75, 0.80]), better[1]]
    assert own_default(better) == 1.0
    assert own_default(elsewhere) == own_default(rows_of("fmgda", [1] * 3, [1] * 3)) == 0.3
    text = constants([*better, *rows_of("fmgda", [0.8, 0.8, nan], [0.8, 0.8, 0.8])])
    assert "| coda-plus | 2 | 0; 0.100 | 1; 0.050 | 2; 0.000 |" in text
    assert "| fmgda | 2 | 2; 0.000 | 2; 0.000 | 1; ∞ |" in text
    assert "coda-plus 1" in text
    assert "fmgda 0" not in text
