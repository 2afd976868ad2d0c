"""No patient is on two sides of any split, by whichever partition, and however patients or groups are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from edelweiss.config.study import read_study
from edelweiss.datasets import DataConfig, DataError, common_test_patients, load_site, load_test
from edelweiss.datasets.partition import NATURAL, PARTITIONS
from edelweiss.datasets.splits import merge_units
from tests.datasets.helpers import sites_of
from tests.said import has

SITES = 4
CLINICS = ("clinic-2", "clinic-10", "clinic-9", "clinic-1")
SPLITS: dict[str, dict[str, Any]] = {
    "held out": {},
    "half": {"holdout_share": 0.5, "test_share": 0.4, "seed": 7},
    "folds": {"folds": 3, "fold": 1, "seed": 1},
    "personal test": {"personal_test": True, "seed": 2},
    "thinned": {"thin_share": 0.1, "seed": 3},
}
STUDY = 'patient = "who"\n[label]\ncolumn = "label"\nnegative = ["0"]\npositive = ["1"]\n[columns.value]\n'


def visits(patients: int = 120) -> list[dict[str, str]]:
    """Rows of patients, from one to nine of each, who have a clinic and a ward; some have been in two of them."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(patients):
        clinic, centre, sick = rng.integers(4), rng.normal(), rng.random() < 0.4
        for _ in range(rng.integers(1, 10)):
            moved = number % 10 == 0 and rng.random() < 0.5
            label = int(sick) if rng.random() < 0.8 else int(not sick)
            rows.append(
                {
                    "value": f"{centre + 1e-3 * rng.normal():.6f}",
                    "label": str(label),
                    "who": f"p{number}",
                    "clinic": CLINICS[(clinic + moved) % 4],
                    "ward": f"w{number // 2 + moved}",
                }
            )
    return [rows[place] for place in rng.permutation(len(rows))]


ROWS = visits()


def write(file: Path, columns: dict[str, str], rows: list[dict[str, str]] = ROWS) -> str:
    """Write columns of the rows under other names."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(columns.values()), *(",".join(row[name] for name in columns) for row in rows)]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


PLAIN = {"value": "value", "label": "label"}


def a_column_of_groups(folder: Path, partition: str) -> dict[str, Any]:
    if partition in NATURAL:
        pytest.skip("each group is a site")
    file = write(folder / "t.csv", {**PLAIN, "who": "pid"})
    return {"dataset": "table", "data_file": file, "group_column": "pid"}


def a_column_called_patient(folder: Path, partition: str) -> dict[str, Any]:
    group = "ward" if partition == "by-group" else "clinic"
    file = write(folder / "t.csv", {**PLAIN, "who": "patient", group: "group"})
    return {"dataset": "table", "data_file": file, "group_column": "group"}


def a_study(folder: Path, partition: str) -> dict[str, Any]:
    group = "ward" if partition == "by-group" else "clinic"
    (folder / "study.toml").write_text(STUDY)
    file = write(folder / "t.csv", {**PLAIN, "who": "who", group: "group"})
    study = read_study(str(folder / "study.toml"))
    return {"dataset": "table", "data_file": file, "group_column": "group", "study": study}


def one_column_for_both(folder: Path, partition: str) -> dict[str, Any]:
    if partition in NATURAL:
        pytest.skip("each patient is a site")
    (folder / "study.toml").write_text(STUDY)
    file = write(folder / "t.csv", {**PLAIN, "who": "who"})
    study = read_study(str(folder / "study.toml"))
    return {"dataset": "table", "data_file": file, "group_column": "who", "study": study}


def folders(folder: Path, partition: str) -> dict[str, Any]:
    if partition == "by-group":
        pytest.skip("each folder is a group, and one is tested on")
    for clinic in CLINICS:
        own = [row for row in ROWS if row["clinic"] == clinic]
        write(folder / clinic / "data.csv", {**PLAIN, "who": "patient"}, own)
    return {"dataset": "site-folders", "data_root": str(folder)}


WAYS = (a_column_of_groups, a_column_called_patient, a_study, one_column_for_both, folders)


def sides(config: DataConfig) -> Iterator[tuple[str, int, list[int]]]:
    """Yield the rows of each part: the side of it, the site (-1 for none) and the rows."""
    test = load_test(config)
    if test is not None and not config.personal_test:
        yield "test", -1, test.rows.tolist()
    for number, site in enumerate(sites_of(config, SITES)):
        yield "train", number, site.train.rows.tolist()
        yield "held out", number, site.held_out.rows.tolist()


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("way", WAYS)
def test_nobody_is_on_two_sides(way: Any, split: str, partition: str, tmp_path: Path) -> None:
    given = way(tmp_path, partition)
    config = DataConfig(partition=partition, **{**given, "test_share": 0.25, **SPLITS[split]})
    order = sorted(CLINICS, key=lambda clinic: int(clinic.partition("-")[2]))
    table, who = ROWS, [row["who"] for row in ROWS]
    if way is folders:  # each hospital has numbers of its own
        table = [row for clinic in order for row in ROWS if row["clinic"] == clinic]
        who = [row["clinic"] + row["who"] for row in table]
    group = {a_column_of_groups: "who", one_column_for_both: "who"}.get(way, "ward")
    parts = list(sides(config))
    every = [row for _, _, rows in parts for row in rows]
    assert len(every) == len(set(every)), "no row is anywhere twice"
    assert len(every) == len(table) or split == "thinned"
    found: dict[str, set[str]] = {}
    places: dict[str, set[int]] = {}
    for side, site, rows in parts:
        for row in rows:
            for unit in {who[row], table[row][group] if partition == "by-group" else who[row]}:
                found.setdefault(unit, set()).add(side)
                places.setdefault(unit, set()).add(site)
            if partition == "sites" and site >= 0:
                assert table[row]["clinic"] == order[site], "clinic 10 comes behind clinic 9"
    assert {unit: on for unit, on in found.items() if len(on) > 1} == {}
    if partition not in NATURAL:
        assert {unit: at for unit, at in places.items() if len(at) > 1} == {}
    counts = {side: sum(len(rows) for of, _, rows in parts if of == side) for side in ("test", "train", "held out")}
    if split == "held out" and way is not folders:
        assert counts["test"] == pytest.approx(0.25 * len(table), rel=0.25)
        assert counts["held out"] == pytest.approx(0.2 * 0.75 * len(table), rel=0.4)
    assert counts["held out"] > 0
    for site in sites_of(config, SITES):  # as it knows when it says how sure a number is
        assert site.patient_ids is not None
        rows = site.held_out.rows.tolist()
        known = {(who[row], int(site.patient_ids[row])) for row in rows}
        assert len(known) == len({who[row] for row in rows})
        assert partition == "by-group" or len(known) == len({unit for _, unit in known})
    if (test := load_test(config)) is not None and partition != "by-group":
        whose = common_test_patients(config)
        assert whose is not None
        assert len({(who[row], unit) for row, unit in zip(test.rows.tolist(), whose.tolist(), strict=True)}) == len(
            set(whose.tolist())
        )


@pytest.mark.parametrize("partition", [name for name in PARTITIONS if name not in NATURAL])
@pytest.mark.parametrize("seed", range(3))
def test_what_a_patient_is_known_by_tells_nothing_of_others(partition: str, seed: int, tmp_path: Path) -> None:
    """Of labels that chance gave to patients a test set of other patients shows no skill."""
    rng = np.random.default_rng(seed)
    sick = rng.permutation(np.arange(120) % 2)
    rows = [
        {"value": f"{3 * who + rng.normal():.4f}", "label": str(sick[who]), "who": f"p{who}"}
        for who in range(120)
        for _ in range(6)
    ]
    file = write(tmp_path / "t.csv", {**PLAIN, "who": "pid"}, rows)
    config = DataConfig(dataset="table", data_file=file, group_column="pid", partition=partition, seed=seed)
    test = load_test(config)
    assert test is not None
    parts = [site.train for site in sites_of(config, 3)]
    inputs, labels = (
        np.concatenate([np.asarray(part) for part in both])
        for both in zip(*((p.inputs[p.rows], p.targets()) for p in parts), strict=True)
    )
    # Who finds the nearest row knows the patient, and would be right of everybody that is trained on.
    right = KNeighborsClassifier(1).fit(inputs, labels).score(test.inputs[test.rows], test.targets())
    assert 0.2 < right < 0.8


def test_fewer_groups_than_sites_are_refused_with_a_way_out(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", {**PLAIN, "clinic": "clinic"})
    config = DataConfig(dataset="table", data_file=file, group_column="clinic", partition="iid")
    with pytest.raises(DataError, check=has(16, "'clinic'", "'patient'", key="sites", value=8)):
        load_site(config, 0, 8)


def test_groups_that_share_a_patient_are_one() -> None:
    groups, patients = np.array([0, 0, 1, 2, 3, 4]), np.array([7, 8, 8, 9, 9, 1])
    assert merge_units(groups, patients).tolist() == [0, 0, 0, 2, 2, 4]
    chain = np.repeat(np.arange(50), 2)  # group g shares a patient with group g + 1
    assert set(merge_units(chain, np.roll(np.repeat(np.arange(50), 2), 1)).tolist()) == {0}
