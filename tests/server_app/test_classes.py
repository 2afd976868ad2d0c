"""No model has a class that no patient is of: labels that leave out numbers are mapped, and told, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edelweiss.common import PROCESS_CACHE, Value
from edelweiss.datasets import DataConfig, DataError, load_site
from edelweiss.datasets.site.table import in_order
from edelweiss.federation import RunError
from edelweiss.lab.report import write_report
from edelweiss.server_app import simulate
from tests.said import has, lines
from tests.server_app.sites import job, run_at, site_job

CASES = {
    "from 1": ("1", "2", "3"),
    "two": ("1", "2"),
    "gaps": ("0", "2", "5"),
    "tens": ("10", "9", "-1", "100"),
    "words": ("stage 10", "stage 2", "healthy"),
    "both": ("unknown", "7", "30"),
    "floats": ("1.0", "2.0", "3.0"),
}
ORDER = {
    "tens": ["-1", "9", "10", "100"],
    "words": ["healthy", "stage 2", "stage 10"],
    "both": ["7", "30", "unknown"],
    "floats": ["1", "2", "3"],
}


def write(file: Path, values: tuple[str, ...], rows: int = 90) -> Path:
    """Write a table whose label takes these values in turn."""
    rng = np.random.default_rng(0)
    lines = [f"{row % len(values) + rng.normal():.3f},{values[row % len(values)]}" for row in range(rows)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["marker,label", *lines]))
    return file


@pytest.mark.parametrize("case", CASES)
def test_a_table_has_as_many_classes_as_values(case: str, tmp_path: Path) -> None:
    values = CASES[case]
    file = write(tmp_path / "t.csv", values)
    config = DataConfig(dataset="table", data_file=str(file), binary=False, test_share=0.0, holdout_share=0.0)
    site = load_site(config, 0, 1)
    order = ORDER.get(case, list(values))
    assert site.class_names == tuple(order)
    assert site.classes == len(values)
    truth = [order.index(values[row % len(values)].removesuffix(".0")) for row in range(90)]
    assert site.train.targets().tolist() == truth
    [told] = site.change_log
    for number, name in enumerate(order):
        assert f"'{name}' ({truth.count(number)} rows) is class {number}" in told


def test_numbers_from_0_stay_what_they_are(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", ("2", "0", "1"))
    site = load_site(DataConfig(dataset="table", data_file=str(file), binary=False), 0, 1)
    assert (site.classes, site.change_log) == (3, ())


@pytest.mark.usefixtures("unpainted")
def test_a_run_says_which_value_is_which_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t.csv", CASES["words"])
    keys: dict[str, Value] = {"algorithm": "fedavg", "problem": "cross-entropy", "dataset": "table", "partition": "iid"}
    folder = simulate({**job(tmp_path, rounds=1), **keys, "data-file": str(file)}, quiet=False).folder
    said = capsys.readouterr().out
    assert lines(said, "'healthy' (30 rows)", "class 0", "'stage 2' (30 rows)", "class 1")
    assert "3 classes" in said
    write_report(folder)
    for name in ("report.html", "model-card.md", "tripod-ai.md"):
        assert "class 0: healthy, class 1: stage 2, class 2: stage 10" in (folder / name).read_text()


@pytest.mark.parametrize("values", [("1.5", "2.5", "0"), ("0.25", "healthy")])
def test_measurements_are_no_classes(values: tuple[str, ...], tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", values)
    with pytest.raises(DataError, check=has("'label'", "1,000")):
        load_site(DataConfig(dataset="table", data_file=str(file), binary=False), 0, 1)
    assert in_order(map(str, range(1, 1002))) == {}, "nor are ever so many"


def test_which_of_two_values_is_positive_is_asked(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", ("1", "2"))
    with pytest.raises(DataError, check=has('negative = ["1"]', 'positive = ["2"]')):
        load_site(DataConfig(dataset="table", data_file=str(file)), 0, 1)


def test_folders_of_hospitals_are_asked_to_agree(tmp_path: Path) -> None:
    config = DataConfig(dataset="site-folders", data_root=str(tmp_path), binary=False, partition="sites")
    write(tmp_path / "a" / "data.csv", ("1", "2"))
    write(tmp_path / "b" / "data.csv", ("2", "3"))
    with pytest.raises(DataError, check=has("class 0", "study file")):
        load_site(config, 0, 2)
    PROCESS_CACHE.forget()
    write(tmp_path / "c" / "data.csv", ("0", "3"))
    parts = [load_site(config, site, 3) for site in range(3)]
    assert {part.classes for part in parts} == {4}, "together they have them all"
    assert [set(part.train.targets().tolist()) for part in parts] == [{1, 2}, {2, 3}, {0, 3}]


def test_hospitals_are_asked_to_agree_by_who_sees_them_all(tmp_path: Path) -> None:
    """One may lack a class that another has, so no hospital can judge by itself."""

    def hospitals(*values: tuple[str, ...]) -> list[dict[str, Value]]:
        places = [tmp_path / f"{len(values)}-{place}" for place in range(len(values))]
        return [
            {"site": place.name, "data-dir": str(write(place / "data.csv", own).parent)}
            for place, own in zip(places, values, strict=True)
        ]

    keys: dict[str, Value] = {"algorithm": "fedavg", "problem": "cross-entropy", "sites": 2, "rounds": 1}
    with pytest.raises(RunError, check=has("study file", key="classes", value={1, 2, 3})):
        run_at(site_job(tmp_path, **keys), hospitals(("1", "2"), ("2", "3")))
    run_at(site_job(tmp_path, **keys | {"sites": 3}), hospitals(("1", "2"), ("2", "3"), ("0", "3")))
