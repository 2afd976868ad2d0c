"""Replies about two sets of patients: their difference is about nobody, or about enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edelweiss.client_app.policy.differencing import isolates
from edelweiss.client_app.site import OpenSite
from edelweiss.common import Value
from edelweiss.datasets import DataSummary, Facts
from tests.client_app.policies import site_toml, told
from tests.server_app.sites import SiteGrid, site_job

FEWEST = 4


def rows(*patients: int, said: int = 0) -> np.ndarray:
    """Return a set with a row of each patient."""
    return np.array([patients, [100 * who + said for who in patients]], np.uint64)


AP, PA = range(30), range(30, 60)


@pytest.mark.parametrize(("gone", "come"), [(1, 1), (2, 1), (2, 2), (FEWEST - 1, 1), (1, FEWEST - 1), (3, 3)])
def test_a_union_of_few_is_few_and_one_of_enough_is_not(gone: int, come: int) -> None:
    """The difference is about those who have gone and those who have come, together: exactly the fewest are enough."""
    before, now = rows(*AP, *range(100, 100 + gone)), rows(*AP, *range(200, 200 + come))
    assert isolates(now, [before], FEWEST) == (gone + come < FEWEST)


@pytest.mark.parametrize("told", [FEWEST - 1, FEWEST])
def test_a_set_of_the_fewest_was_told_of(told: int) -> None:
    few = rows(*range(told))
    every, without = rows(*range(told + 1)), told == FEWEST
    assert isolates(every, [few], FEWEST) == without, "one more than a set that was told of"


def test_a_change_counts_with_what_it_changes() -> None:
    before, corrected = rows(*AP), np.hstack([rows(0, said=1), rows(*AP[1:])])
    assert isolates(corrected, [before], FEWEST)
    assert isolates(rows(*AP[1:], said=1), [before], FEWEST), "one has gone, whatever the rows of the others say"
    assert not isolates(rows(*AP, said=1), [before], FEWEST)


def test_a_set_of_few_says_nothing_for_nothing_is_told_of_it() -> None:
    assert not isolates(rows(*AP), [rows(*AP[: FEWEST - 1])], FEWEST)
    assert not isolates(rows(*AP[: FEWEST - 1]), [rows(*AP), rows(*PA)], FEWEST)
    assert not isolates(rows(0, 1), [], FEWEST)


def test_what_was_told_already_is_no_reason_against_another_answer() -> None:
    """The operator has raised the number since, or an earlier release told more: nobody is shut out for ever."""
    history = [rows(*AP), rows(*AP, 30, 31)]
    for now in (history[0], history[1], rows(*AP, *PA, *range(60, 90)), rows(*range(100, 130))):
        assert not isolates(now, history, FEWEST)
    assert isolates(rows(*AP, 30), history, FEWEST)


def images_of(counts: np.ndarray, since: int = 0) -> np.ndarray:
    """Return a set with so many images of each patient."""
    who = np.repeat(np.arange(len(counts)), counts)
    return np.array([who, 10_000 * who + np.concatenate([np.arange(since, since + n) for n in counts])], np.uint64)


def test_patients_with_many_images_are_no_small_groups_by_their_number() -> None:
    random = np.random.default_rng(0)
    counts = random.geometric(0.1, 600)  # up to some 60 images of a patient
    first = images_of(counts)
    assert not isolates(first, [first], 20)
    assert not isolates(images_of(random.geometric(0.1, 600), 100), [first], 20), "other images of the same"
    later = np.append(counts + random.integers(0, 3, 600), random.geometric(0.1, 100))
    assert not isolates(images_of(later), [first], 20), "more of each, and a hundred others"
    assert isolates(first[:, 1:], [first], 20), "one image less of one patient"


# ---------------------------------------------------------------------- a hospital


class Folder:
    """A hospital's folder and state, asked by one run after the other."""

    def __init__(self, folder: Path, **policy: Value) -> None:
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir()
        self.node: dict[str, Value] = {"site": "north", "data-dir": str(self.data), "state-dir": str(folder / "state")}
        self.node["policy"] = site_toml(folder, seed="a", **policy)

    def write(self, name: str, *lines: object) -> None:
        (self.data / name).write_text("\n".join(map(str, lines)), encoding="utf-8")

    def asked(self, **keys: Value) -> Facts | str:
        with SiteGrid(site_job(self.folder, sites=1, model="mlp", **keys), [self.node]) as grid:
            return told(grid)

    def held_out(self, **keys: Value) -> set[bytes]:
        with SiteGrid(site_job(self.folder, sites=1, **keys), [self.node]) as grid:
            data = OpenSite.from_context(grid.contexts[0]).data()
        assert data is not None
        assert data.patient_ids is not None
        return {who.tobytes() for who in data.patient_ids[data.held_out.rows.numpy()]}


def image(path: Path, random: np.random.Generator) -> None:
    Image.fromarray(random.integers(0, 255, (8, 8)).astype(np.uint8)).save(path)


@pytest.mark.parametrize("label", ["A,B", "B,A", "A,B,C"])
def test_a_corrected_label_is_noticed_whichever_labels_a_run_asks_for(tmp_path: Path, label: str) -> None:
    hospital, random = Folder(tmp_path), np.random.default_rng(0)
    labels = random.integers(0, 2, (200, 3))
    for i in range(200):
        image(hospital.data / f"{i}.png", random)
    for corrected in (0, 1):
        labels[0, 0] ^= corrected
        lines = (f"{i}.png," + ",".join(map(str, row)) for i, row in enumerate(labels.tolist()))
        hospital.write("labels.csv", "path,A,B,C", *lines)
        answer = hospital.asked(label=label if corrected else "A,B")
        assert isinstance(answer, str) == bool(corrected), answer


def test_no_preset_of_a_run_decides_who_is_held_out(tmp_path: Path) -> None:
    """It takes a column for no feature, which is one without it: patients are told apart by it all the same."""
    hospital, random = Folder(tmp_path), np.random.default_rng(1)
    table = random.normal(size=(300, 2)).round(3).tolist()
    flags = random.integers(0, 2, (300, 3)).tolist()
    lines = (",".join(map(str, [*row, *flag])) for row, flag in zip(table, flags, strict=True))
    hospital.write("data.csv", "age,dose,No Finding,A,B", *lines)
    plain = hospital.held_out(label="A,B", uncertain="ignore", blank="ignore")
    assert plain == hospital.held_out(label="A,B", label_preset="torchxrayvision")
    assert len(plain) > 30


def test_minima_count_patients_where_a_column_names_them(tmp_path: Path) -> None:
    hospital = Folder(tmp_path, patient="who", holdout_share=0.0)
    random = np.random.default_rng(1)
    hospital.write(
        "data.csv",
        "who,a,b,label",
        *(f"smith,{a},{b},{i % 2}" for i, (a, b) in enumerate(random.normal(size=(40, 2)).tolist())),
    )
    assert "fewer than 20 training patients" in str(hospital.asked())


@pytest.mark.parametrize("private", [False, True])
def test_under_differential_privacy_no_exact_count_decides_which_labels_are_judged(
    tmp_path: Path, private: bool
) -> None:
    """The noise hides few of a class; a label that vanishes with the fifth patient would tell that one."""
    hospital = Folder(tmp_path, holdout_share=0.5, **({"privacy": {"epsilon": 8.0}} if private else {}))
    hospital.node["label"] = "A,B"
    random = np.random.default_rng(1)
    rows = random.normal(size=(200, 2)).round(3).tolist()
    lines = (f"{a},{b},{i % 2},{int(i < 4)}" for i, (a, b) in enumerate(rows))
    hospital.write("data.csv", "age,dose,A,B", *lines)
    keys: dict[str, Value] = {"label": "A,B", "uncertain": "ignore", "blank": "ignore", "model": "mlp"}
    keys |= {"dp.epsilon": 2.0} if private else {}
    with SiteGrid(site_job(hospital.folder, sites=1, **keys), [hospital.node]) as grid:
        site = OpenSite.from_context(grid.contexts[0])
        data = site.data()
        assert data is not None
        summary = DataSummary(shape=data.train.shape, classes=2, labels=("A", "B"), priors=(0.5, 0.02))
        held_out = site._in_run("key", 0, "north", 1, summary).samples[1]
    assert held_out is not None
    known = (held_out.targets() >= 0).any(0).tolist()
    assert known == [True, private]
