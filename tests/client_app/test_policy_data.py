"""A hospital's own rules about its data: they stay as they are, and what may be a mistake is said."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.datasets import Facts
from edelweiss.datasets.labels import Labels
from edelweiss.datasets.site import read_site
from tests.client_app.policies import Hospital, site_toml, told, train
from tests.server_app.sites import FEATURES, table, write_table


def test_data_that_change_within_a_run_end_it_here(tmp_path: Path) -> None:
    features, labels = table(90, seed=0)
    hospital = Hospital(tmp_path, features, labels)
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        write_table(hospital.data, features[::-1], labels[::-1])  # the same patients in another order
        for kind in ("train", "evaluate"):
            assert "its data or the held-out split have changed" in train(grid, kind)
        write_table(hospital.data, features, labels)
        assert "changed" not in train(grid)


def test_rules_that_change_within_a_run_hold_from_the_next_message_on(tmp_path: Path) -> None:
    """Others held out would be a second set of patients, told of beside the first; too few are too few."""
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200))
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        for change in ({"holdout_share": 0.3}, {"seed": "another"}):
            site_toml(tmp_path, **change)
            assert "held-out split have changed" in str(told(grid))
            assert "held-out split have changed" in train(grid)
        site_toml(tmp_path, fewest_training=399)
        assert "fewer than 399 training patients" in train(grid)
        site_toml(tmp_path)
        assert not train(grid)


@pytest.mark.parametrize(
    "other", [{"name": "south"}, {"run": "another"}, {"shift": [1.0] * 4, "scale": [2.0] * 4}, {"prior": 0.4}], ids=str
)
def test_what_holds_for_a_whole_run_stays(tmp_path: Path, other: dict[str, Any]) -> None:
    """A site's place chooses its batches, the moments its inputs: whoever varies them chooses patients and features."""
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200))
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        assert not train(grid)
        for kind in ("train", "evaluate"):
            assert "has changed since the run began" in train(grid, kind, **other)
        assert not train(grid, round=2, committed=1)
    with hospital.run() as grid:
        assert not train(grid, **other)


def test_a_round_asks_about_one_model(tmp_path: Path) -> None:
    """Or it asks until it knows a patient: the highest score of each of a few hundred models says who has it."""
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200))
    with hospital.run(rounds=2) as grid:
        assert isinstance(told(grid), Facts)
        assert not train(grid)
        assert not train(grid), "asked again, because the answer was lost"
        assert "was requested differently" in train(grid, model=torch.ones(FEATURES + 3))
        assert not train(grid, round=2)
        assert "round 1 is over here" in train(grid)
        assert not train(grid, "evaluate", round=2)
        assert not train(grid, "evaluate", round=2)
        assert "was requested differently" in train(grid, "evaluate", round=2, model=torch.ones(FEATURES + 3))
        assert "round 2 is over here" in train(grid, round=2)


def test_a_run_that_goes_on_after_a_stop_needs_the_same_data(tmp_path: Path) -> None:
    """It has another number then, and keeps its key."""
    features, labels = table(90, seed=0)
    hospital = Hospital(tmp_path, features, labels)
    with hospital.run() as grid:
        train(grid)
    write_table(hospital.data, features[::-1], labels[::-1])
    with hospital.run() as grid:
        assert "its data or the held-out split have changed" in train(grid)
        assert "changed" not in train(grid, run="another")


def test_a_run_that_skips_the_first_question_is_held_to_the_same(tmp_path: Path) -> None:
    features, labels = table(90, seed=0)
    hospital = Hospital(tmp_path, features[1:], labels[1:])
    with hospital.run() as grid:
        train(grid)
    write_table(hospital.data, features, labels)
    with hospital.run() as grid:
        assert "differ by fewer than" in train(grid, run="another")
        assert "differ by fewer than" in train(grid, "evaluate", run="another")


DOUBTS: list[tuple[str, Callable[[int], Any], str]] = [
    ("identifiers", lambda i: 4711 + i, "a different whole number in each row"),
    ("dates", lambda i: 20240101 + i % 28, "hold dates (YYYYMMDD)"),
    ("the label", lambda i: 7 - 3 * (i < 15), "copies of the label"),
    ("a constant", lambda i: 3.5, "the same value in all rows"),
    ("nothing", lambda i: np.nan, "hold no value"),
]


@pytest.mark.parametrize(("name", "value", "said"), DOUBTS, ids=[name for name, *_ in DOUBTS])
def test_what_may_be_a_mistake_is_warned_of_and_refused_if_strict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, value: Callable[[int], Any], said: str
) -> None:
    features, labels = table(60, seed=0)
    features[:, 2] = [value(i) for i in range(60)]
    for strict in (False, True):
        hospital = Hospital(tmp_path / str(strict), features, labels, strict=strict, seed="a")
        with caplog.at_level(logging.WARNING):
            answer = hospital.described()
        assert [r for r in caplog.records if "'marker_2'" in r.getMessage() and said in r.getMessage()]
        caplog.clear()
    assert str(answer).startswith("data.csv: 1 columns ")
    assert said in str(answer)
    assert "marker" not in str(answer)


@pytest.mark.parametrize("names", ["label", "study", ""])
def test_a_strict_site_lets_no_run_choose_its_label(tmp_path: Path, names: str) -> None:
    """A feature as the label: the counts and the model of it would be of something that nobody agreed on."""
    hospital = Hospital(tmp_path, *table(90, seed=0), strict=True, seed="a")
    (tmp_path / "study.toml").write_text(STUDY)
    named = {"label": "label"} if names == "label" else {"study": f"{tmp_path}/study.toml"} if names else {}
    hospital.node |= {"label": "", **named}
    said = hospital.described(label="marker_0")
    assert isinstance(said, Facts) == bool(named)
    assert named or "names no label column" in str(said)
    site_toml(tmp_path, seed="a")
    hospital.node["label"] = ""
    assert isinstance(hospital.described(), Facts)


STUDY = "[label]\ncolumn = 'label'\nnegative = ['0']\npositive = ['1']\n[columns.marker_0]\n[columns.marker_1]\n"


def test_a_good_table_raises_no_doubts_and_rows_that_repeat_do(tmp_path: Path) -> None:
    features, labels = table(60, seed=0)
    features[:, 1] = np.arange(60) % 7
    assert isinstance(Hospital(tmp_path / "a", features, labels, strict=True).described(), Facts)
    features[50:], labels[50:] = features[40:50], labels[40:50]
    assert Hospital(tmp_path / "b", features, labels, strict=True).described() == "10 rows repeat an earlier one"
    categories = np.random.default_rng(0).integers(0, 2, features.shape)
    assert isinstance(Hospital(tmp_path / "few", categories, labels, strict=True).described(), Facts), "by chance"


def test_rows_that_contradict_each_other_raise_a_doubt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where features are numbers; of a few categories many patients have all in common."""
    features, labels = table(60, seed=0)
    alike, other = features.copy(), labels.copy()
    alike[50:], other[50:] = alike[40:50], 1 - other[40:50]
    said = "20 rows have the same features as others, but another label"
    assert Hospital(tmp_path / "strict", alike, other, strict=True).described() == said
    with caplog.at_level(logging.WARNING):
        assert isinstance(Hospital(tmp_path / "lax", alike, other).described(), Facts)
    assert said in caplog.text

    caplog.clear()
    categories = np.random.default_rng(0).integers(0, 2, features.shape)
    assert isinstance(Hospital(tmp_path / "few", categories, labels).described(), Facts)
    assert "another label" not in caplog.text


@pytest.mark.parametrize(("label", "contradicts"), [("0", True), ("-1", False), ("", False)])
def test_what_is_not_known_contradicts_nothing(tmp_path: Path, label: str, contradicts: bool) -> None:
    patients = [f"{i}.5,{i * 7 % 11},0,{i % 2}" for i in range(40)] + [f"3.5,10,0,{label}", ",,0,1", ",,0,0"]
    (tmp_path / "data.csv").write_text("\n".join(["age,dose,other,outcome", *patients]))
    labels = Labels(("other", "outcome"), uncertain=("ignore",) * 2, blank="ignore")
    doubts = read_site(str(tmp_path), "other,outcome", True, labels=labels).warnings
    said = [str(doubt) for doubt in doubts if "another label" in str(doubt)]
    assert len(said) == contradicts
    assert all("2 rows" in text for text in said)


@pytest.mark.parametrize("first", ["63.0,1.0,145,233,1", "63,M,P07,yes,0", "4,2,4,2,1"])
@pytest.mark.parametrize("label", ["label", 1, 4])
def test_a_table_without_a_header_does_not_tell_its_first_patient(tmp_path: Path, first: str, label: str | int) -> None:
    """Whether a run asks for a column that is not there, or one of the values happens to be called so."""
    hospital = Hospital(tmp_path, *table(60, seed=0))
    cells = first.split(",")
    rows = [",".join(re.sub("[0-9]", str(row % 10), cell) for cell in cells[:-1]) + f",{row % 2}" for row in range(60)]
    (hospital.data / "data.csv").write_text("\n".join([first, *rows]) + "\n")
    answer = str(hospital.described(label=label if isinstance(label, str) else cells[label]))
    assert "the first line seems to hold values" in answer
    assert not [cell for cell in cells if cell in answer.replace("problems", "")[12:] and len(cell) > 1]


def test_columns_that_are_counted_are_a_header(tmp_path: Path) -> None:
    for names in (["0", "1", "2", "3"], ["1", "2", "3", "4"]):
        hospital = Hospital(tmp_path / names[0], *table(60, seed=0))
        write_table(hospital.data, *table(60, seed=0), names=names)
        assert isinstance(hospital.described(), Facts)


def test_a_patient_column_is_no_feature(tmp_path: Path) -> None:
    features, labels = table(90, seed=0)
    features[:, 0] = np.arange(90) // 3
    hospital = Hospital(tmp_path, features, labels, patient="marker_0", seed="a", strict=True)
    facts = hospital.described()
    assert isinstance(facts, Facts)
    assert facts.shape == (FEATURES - 1,)
    assert facts.examples is not None
    assert facts.examples % 3 == 0
    wrong = Hospital(tmp_path / "b", features, labels, patient="pid").described()
    assert wrong == "data.csv: the patient column is not among its columns"
