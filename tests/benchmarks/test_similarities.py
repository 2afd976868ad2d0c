"""How alike DePRL's workers become."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import similarities
from benchmarks.similarities import HEADINGS, JOB, cosines, main, measure
from benchmarks.studies import Value

SMALL: dict[str, Value] = {**JOB, "dataset": "digits", "sites": 6, "hidden": 16}


def test_cosines_are_those_of_every_two_rows() -> None:
    vectors = np.array([[1.0, 0.0], [3.0, 3.0], [0.0, -2.0]])
    assert cosines(vectors) == pytest.approx([0.5**0.5, 0.0, -(0.5**0.5)])


@pytest.mark.slow
def test_heads_go_with_the_class_mixes_and_bodies_come_together() -> None:
    found = measure({**SMALL, "concentration": 0.1})
    assert found["mixes and heads"] > 0.6
    assert found["mixes and heads"] > found["mixes and bodies"] + 0.2
    assert found["bodies"] > 0.9 > 0.5 > found["heads"]


@pytest.mark.slow
def test_every_mix_and_seed_is_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarities, "JOB", {**SMALL, "sites": 5, "rounds": 1})
    assert main(["--results-dir", str(tmp_path)]) == 0
    lines = (tmp_path / "deprl-similarities.csv").read_text().splitlines()
    assert lines[0] == ",".join(["concentration", "seed", *HEADINGS])
    assert len(lines) == 1 + 9
    page = (tmp_path / "deprl-similarities.md").read_text()
    assert "5 workers on a ring, 1 rounds" in page
    assert all(f"\n| {mix} | " in page for mix in similarities.MIXES)
