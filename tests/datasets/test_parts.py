"""A table that is read in parts is the table; where the parts end plays no role."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from edelweiss.datasets import DataError
from edelweiss.datasets.site import read_site, table
from edelweiss.datasets.source import Source

ROWS = 60


def written(folder: Path, *, late: str = "") -> Path:
    """Write a table whose columns have all that a cell may hold; ``late`` stands in its last row but one."""
    draw = random.Random(0)
    cells = ["1", "-2.5", "", "NA", " 3 ", "1e3", '"4.25"', "true", "007"]
    lines = ["id,a,b,label"]
    for row in range(ROWS):
        lines.append(f"p{row % 40},{draw.choice(cells)},{draw.random()},{row % 3 == 0:d}")
    lines[-2] = f"p1,{late},0.5,1" if late else lines[-2]
    folder.mkdir()
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    return folder


def read(folder: Path, monkeypatch: pytest.MonkeyPatch, cells: int) -> Source:
    monkeypatch.setattr(table, "CELLS", cells)
    return read_site(str(folder), "label", True, patient="id")


@pytest.mark.parametrize("cells", [1, 8, 52])
def test_its_values_and_patients_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    folder = written(tmp_path / "data")
    parts, whole = (read(folder, monkeypatch, many) for many in (cells, 10**6))
    assert torch.equal(parts.inputs.nan_to_num(nan=-1), whole.inputs.nan_to_num(nan=-1))
    assert parts.inputs.isnan().sum() > 0
    for name in ("classes", "patient_ids", "row_ids"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name)), name


@pytest.mark.parametrize("late", ["word", "1_000", "１", "1e19", "-nan", "infinity"])
def test_what_comes_late_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    folder = written(tmp_path / "data", late=late)
    problems = []
    for cells in (8, 10**6):
        with pytest.raises(DataError) as raised:
            read(folder, monkeypatch, cells)
        problems.append(str(raised.value))
    assert problems[0] == problems[1]
    assert f"row {ROWS - 1} ({late!r})" in problems[0]


def test_lines_of_another_length_are_counted_in_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "data")
    file = folder / "data.csv"
    lines = file.read_text().splitlines()
    lines[3] += ",1"
    lines[50] = "p1,2"
    file.write_text("\n".join(lines))
    with pytest.raises(DataError) as raised:
        read(folder, monkeypatch, 8)
    assert "line 4 has 5, line 51 has 2" in str(raised.value)
