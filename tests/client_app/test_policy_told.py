"""Replies about several sets of patients: no combination of them is about a few."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from edelweiss.client_app.policy.differencing import isolates
from edelweiss.client_app.site import OpenSite
from edelweiss.common import Value
from edelweiss.datasets import Facts
from tests.client_app.policies import site_toml, told
from tests.server_app.sites import SiteGrid, site_job

FEWEST = 4


def rows(*patients: int, said: int = 0) -> np.ndarray:
    """Return a set with a row of each patient."""
    return np.array([patients, [100 * who + said for who in patients]], np.uint64)


AP, PA = range(30), range(30, 60)


def test_three_sets_say_what_no_two_of_them_do() -> None:
    few, many = range(60, 60 + FEWEST - 1), range(60, 60 + FEWEST)
    for lateral, alone in ((few, True), (many, False)):
        every = rows(*AP, *PA, *lateral)
        assert not isolates(every, [rows(*AP)], FEWEST)
        assert isolates(every, [rows(*AP), rows(*PA)], FEWEST) == alone


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


def about(sets: list[set[int]], most: int = 2) -> int:
    """Return the fewest of twelve patients that a combination with the first set is about, times up to so many each."""
    times = [one for one in product(range(-most, most + 1), repeat=len(sets)) if one[0]]
    sums = np.array(times) @ [[who in one for who in range(12)] for one in sets]
    return min(filter(None, np.count_nonzero(sums, axis=1).tolist()), default=12)


@pytest.mark.parametrize(
    "sets", [[{3, 4, 5, 6}, {0, 1, 4, 6}, {0, 1, 2, 4}], [{1, 2, 3, 4, 6}, {0, 1, 4, 5, 6}, {0, 3, 4, 5, 6}]], ids=str
)
def test_a_combination_about_exactly_the_fewest_is_none_of_few(sets: list[set[int]]) -> None:
    """It is about several small groups, which have to be added up."""
    told = [rows(*sorted(one)) for one in sets]
    assert about(sets, 4) == FEWEST
    assert not isolates(told[0], told[1:], FEWEST)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sets(st.integers(0, 11), min_size=FEWEST), min_size=2, max_size=4))
def test_no_small_combination_is_missed(sets: list[set[int]]) -> None:
    """All with whole numbers from -2 to 2 are tried, of a history of which none is about few."""
    if about(sets) < FEWEST and not isolates_any(sets[1:]):
        assert isolates(rows(*sorted(sets[0])), [rows(*sorted(one)) for one in sets[1:]], FEWEST)


def isolates_any(history: list[set[int]]) -> bool:
    """Whether one of the answers of a history should not have been given."""
    told = [rows(*sorted(one)) for one in history]
    return any(isolates(told[k], told[k + 1 :], FEWEST) for k in range(len(told)))


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


def test_views_of_three_runs_do_not_give_one_image_away(tmp_path: Path) -> None:
    hospital, random = Folder(tmp_path), np.random.default_rng(0)
    views = ["AP"] * 60 + ["PA"] * 60 + ["lateral"]
    for i in range(len(views)):
        image(hospital.data / f"{i}.png", random)
    hospital.write("labels.csv", "path,view,label", *(f"{i}.png,{view},{i % 2}" for i, view in enumerate(views)))
    assert isinstance(hospital.asked(views="AP"), Facts)
    assert isinstance(hospital.asked(views="PA"), Facts)
    assert "from those of earlier runs" in str(hospital.asked(views="AP,PA,lateral"))


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
