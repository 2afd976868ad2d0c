"""A digest of the samples that a model is judged on: equal for the same samples, whatever they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.common import PROCESS_CACHE
from edelweiss.config import RunConfig
from edelweiss.datasets import Samples, fingerprints, load_site, load_test
from edelweiss.datasets.evaluation_digest import digest

STUDY = '[label]\ncolumn = "died"\nnegative = ["0"]\npositive = ["1"]\n[columns.age]\n[columns.crp]\n'
ROWS = 120


def write(file: Path, change: tuple[int, int] | None = None, name: str = "died") -> Path:
    """Write a table of two features and a label, one of whose cells (row, column) may be another one."""
    random = np.random.default_rng(0)
    cells = np.column_stack(
        [
            random.normal(50, 9, ROWS).round(2),
            random.normal(3, 1, ROWS).round(3),
            random.permutation(np.repeat([1, 0], [40, 80])),
        ]
    )
    if change:
        cells[change] += 0.5
    lines = [f"{age:g},{crp:g},{int(died)}" for age, crp, died in cells]
    file.write_text("\n".join([f"age,crp,{name}", *lines]) + "\n")
    return file


def of(file: Path, **keys: Any) -> dict[str, str]:
    PROCESS_CACHE.forget()
    config = RunConfig.parse({"dataset": "table", "data-file": str(file), "label": "died", "sites": 3, **keys})
    return fingerprints(config.data(), config.sites)


def test_it_is_of_the_samples_and_not_of_the_words(tmp_path: Path) -> None:
    whole = of(write(tmp_path / "one.csv"))
    assert set(whole) == {"central", "held-out"}
    assert of(write(tmp_path / "other.csv")) == whole, "a copy under another name"
    assert of(tmp_path / "one.csv", **{"thin-share": 0.5}) == whole, "of training rows alone"
    assert of(tmp_path / "one.csv", **{"data-seed": 0}) == whole, "the default seed, written out"
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    by_study = {label: of(tmp_path / "one.csv", study=str(study), label=label) for label in ("died", "label")}
    assert by_study["died"] == by_study["label"], "the study file says which column is the label"


def test_a_label_and_who_holds_a_sample_out_are_part_of_it() -> None:
    config = RunConfig.parse({}).data()
    inputs, labels, rows = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]), torch.arange(6)
    whole = digest(config, [Samples(inputs, labels, rows)])
    turned = labels.clone()
    turned[3] = 0
    assert digest(config, [Samples(inputs, turned, rows)]) != whole
    assert digest(config, [Samples(inputs, labels, rows[:3]), Samples(inputs, labels, rows[3:])]) != whole
    assert digest(config, [Samples(inputs[1:], labels[1:], rows[:-1])]) == digest(
        config, [Samples(inputs, labels, rows[1:])]
    ), "not of where they lie in a file"


@pytest.mark.parametrize("column", [0, 1])
def test_one_other_value_of_a_sample_that_it_is_about_changes_it(tmp_path: Path, column: int) -> None:
    """And one of a training row does not: found by trying every row."""
    whole = of(write(tmp_path / "t.csv"))
    config = RunConfig.parse({"dataset": "table", "data-file": str(tmp_path / "t.csv"), "label": "died", "sites": 3})
    test = load_test(config.data())
    assert test is not None
    tested = set(test.rows.tolist())
    held_out = {row for k in range(3) for row in load_site(config.data(), k, 3).held_out.rows.tolist()}
    for row in (min(tested), min(held_out), min(set(range(ROWS)) - tested - held_out)):
        changed = of(write(tmp_path / "t.csv", (row, column)))
        assert (changed["central"] != whole["central"]) == (row in tested)
        assert (changed["held-out"] != whole["held-out"]) == (row in held_out)


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        ({"sites": 4}, {"central"}),
        ({"concentration": 0.2}, {"central"}),
        ({"seed": 1}, set()),
        ({"test-share": 0.4}, set()),
    ],
)
def test_another_split_of_the_same_rows_is_another_one(tmp_path: Path, keys: dict[str, Any], same: set[str]) -> None:
    whole, other = of(write(tmp_path / "t.csv")), of(tmp_path / "t.csv", **keys)
    assert {part for part in whole if whole[part] == other[part]} == same


def test_more_than_memory_should_read_is_told_by_its_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of(write(tmp_path / "t.csv"))
    monkeypatch.setattr("edelweiss.datasets.evaluation_digest.READ", 8)
    by_place = of(tmp_path / "t.csv")
    assert not set(by_place.values()) & set(whole.values())
    assert of(tmp_path / "t.csv") == by_place
    assert of(tmp_path / "t.csv", seed=1) != by_place
    assert of(write(tmp_path / "other.csv")) != by_place, "then nobody has seen that it is the same"


def test_of_a_hospitals_own_patients_there_is_none() -> None:
    config = RunConfig.parse({"dataset": "site", "sites": 3})
    assert fingerprints(config.data(), 3) == {}
