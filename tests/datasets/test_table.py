"""A table of one's own in a simulation: read as a hospital's, dealt by any partition or by a column of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from edelweiss.common import ConfigError, Value, flatten
from edelweiss.config import RunConfig
from edelweiss.datasets import DataConfig, DataError, load_site, load_test
from edelweiss.datasets.partition import NATURAL
from edelweiss.datasets.sources.table import read_grouped
from edelweiss.problems.trained_model import TrainedModel
from edelweiss.server_app import simulate
from tests.datasets.helpers import sites_of
from tests.said import has
from tests.server_app.sites import SiteGrid, hospitals, job, site_job, table, write_table

CLINICS = ("Ulm", "Bonn", "Kiel")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of 90 patients in three clinics."""
    features, labels = table(90, seed=0)
    folder = write_table(tmp_path_factory.mktemp("own"), features, labels)
    lines = (folder / "data.csv").read_text().splitlines()
    named = [f"{lines[0]},clinic", *(f"{line},{CLINICS[row % 3]}" for row, line in enumerate(lines[1:]))]
    (folder / "own.csv").write_text("\n".join(named) + "\n")
    return str(folder / "own.csv")


def own(file: str, **changes: object) -> DataConfig:
    """Describe its data."""
    keys: dict[str, object] = {"dataset": "table", "data_file": file, "group_column": "clinic", **changes}
    return DataConfig(**keys)  # type: ignore[arg-type]


def rows_of(config: DataConfig, sites: int) -> list[set[int]]:
    """Return the rows that each site has, held-out ones included."""
    return [{*site.train.rows.tolist(), *site.held_out.rows.tolist()} for site in sites_of(config, sites)]


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "by-class", "sites", "split-sites"])
def test_every_partition_deals_every_row_once(file: str, partition: str, tmp_path: Path) -> None:
    if partition not in NATURAL:  # these keep groups whole, of which there are three
        columns = [line.rpartition(",")[0] for line in Path(file).read_text().splitlines()]
        (tmp_path / "own.csv").write_text("\n".join(columns))
        config = own(str(tmp_path / "own.csv"), partition=partition, group_column="")
    else:
        config = own(file, partition=partition)
    dealt = rows_of(config, 3)
    test = load_test(config)
    assert test is not None
    assert sorted(row for rows in [*dealt, set(test.rows.tolist())] for row in rows) == list(range(90))


def test_a_column_makes_sites_and_is_no_feature(file: str) -> None:
    config = own(file, partition="sites", test_share=0.0)
    names = [site.name for site in sites_of(config, 3)]
    assert names == sorted(CLINICS)
    for name, rows in zip(names, rows_of(config, 3), strict=True):
        assert rows == set(range(CLINICS.index(name), 90, 3))
    assert load_site(config, 0, 3).features == tuple(f"marker_{number}" for number in range(4))


def test_rows_of_a_group_are_held_out_together(file: str, tmp_path: Path) -> None:
    header, *lines = Path(file).read_text().splitlines()
    visits = [line.rpartition(",")[0] + f",p{row % 30}" for row, line in enumerate(lines)]
    (tmp_path / "visits.csv").write_text("\n".join([header, *visits]))
    for site in sites_of(own(str(tmp_path / "visits.csv"), partition="by-group", test_share=0.0), 2):
        train, held_out = ({row % 30 for row in part.rows.tolist()} for part in (site.train, site.held_out))
        assert held_out
        assert not train & held_out, "no patient is on both sides"


def test_a_changed_table_is_read_again(file: str, tmp_path: Path) -> None:
    copy = tmp_path / "own.csv"
    run = {"dataset": "table", "data-file": str(copy), "partition": "iid", "sites": 2}
    copy.write_text("\n".join(line.rpartition(",")[0] for line in Path(file).read_text().splitlines()))
    before = len(load_site(RunConfig.parse(run).data(), 0, 2).train)
    copy.write_text("\n".join(copy.read_text().splitlines()[:61]))
    assert len(load_site(RunConfig.parse(run).data(), 0, 2).train) < before


@pytest.mark.parametrize(
    ("old", "new", "key", "row", "said"),
    [
        ("clinic", "ward", "group-column", None, "'clinic'"),
        (",Ulm", ",", "group-column", 1, "row 4"),
        ("Ulm\n", "Ulm\nlow,0,0,0,1,Ulm\n", "marker_0", 2, "'low'"),
        ("label", "outcome", "label", None, "'label'"),
    ],
)
def test_what_is_wrong_with_it_is_named(
    file: str, tmp_path: Path, old: str, new: str, key: str, row: int | None, said: str
) -> None:
    text = Path(file).read_text()
    (tmp_path / "own.csv").write_text(text.replace(old, new, 1 if "\n" in new else -1))
    with pytest.raises(DataError, check=has(said, key=key, row=row)):
        load_site(own(str(tmp_path / "own.csv")), 0, 3)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, check=has("absent.csv", key="data-file")):
        load_site(own(str(tmp_path / "absent.csv")), 0, 3)
    (tmp_path / "own.xlsx").touch()
    with pytest.raises(DataError, check=has("own.xlsx", ".csv", ".parquet", key="data-file")):
        load_site(own(str(tmp_path / "own.xlsx")), 0, 3)


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        ({"dataset": "table"}, "dataset", "data-file"),
        ({"dataset": "table", "data-file": "x.csv", "partition": "sites"}, "partition", "group-column"),
        ({"data-file": "x.csv"}, "data-file", "'breast-cancer'"),
        ({"group-column": "clinic"}, "group-column", "'clinic'"),
        ({"study": "study.toml"}, "study", "'study.toml'"),
    ],
)
def test_keys_that_do_not_go_together(keys: dict[str, Value], key: str, said: str) -> None:
    with pytest.raises(ConfigError, check=has(said, keys=[key])):
        RunConfig.parse(keys)


# ---------------------------------------------------------------------- whole runs


@pytest.mark.slow
def test_a_run_with_a_study_file_on_a_table_in_its_own_spelling(file: str, tmp_path: Path) -> None:
    plain = {"dataset": "table", "data-file": file, "group-column": "clinic", "partition": "sites"}
    expected = simulate(job(tmp_path) | plain)
    lines = Path(file).read_text().replace(",", ";").replace(".", ",")
    (tmp_path / "own.txt").write_text(lines)
    study = 'delimiter = ";"\ndecimal = ","\n[label]\ncolumn = "label"\nnegative = ["0"]\npositive = ["1"]\n'
    (tmp_path / "study.toml").write_text(study + "".join(f"[columns.marker_{number}]\n" for number in range(4)))
    spelt = plain | {"data-file": str(tmp_path / "own.txt"), "study": str(tmp_path / "study.toml")}
    found = simulate(job(tmp_path) | flatten(spelt))
    assert [sorted(record["sites"]) for record in found.metrics] == [sorted(CLINICS)] * 3
    assert [record["auroc"] for record in found.metrics] == [record["auroc"] for record in expected.metrics]
    assert TrainedModel.read(expected.folder).model_schema.features == tuple(f"marker_{number}" for number in range(4))
    assert TrainedModel.read(found.folder).model_schema.study is not None


def test_a_hospital_reads_no_file_that_a_run_names(file: str, tmp_path: Path) -> None:
    config = site_job(tmp_path, dataset="table", data_file=file, partition="iid")
    [node, *_] = hospitals(tmp_path)
    for changes in ({}, {"data-dir": "", "num-partitions": 0}):
        with SiteGrid(config, [{**node, "partition-id": 0, "num-partitions": 3, **changes}]) as grid:
            said = grid.ask("query", 0).content["error"]["message"]
        assert "a site with data of its own, or without num-partitions, reads none" in said


# ---------------------------------------------------------------------- seeds


def test_the_data_have_a_seed_of_their_own(tmp_path: Path) -> None:
    def data(**keys: Value) -> DataConfig:
        return RunConfig.parse({"sites": 3, **keys}).data()

    assert data(seed=4) == data(seed=4, **{"data-seed": 4}) == data(seed=5, **{"data-seed": 4})
    assert data(seed=4) != data(seed=4, **{"data-seed": 5})
    starts = [simulate(job(tmp_path, rounds=1, seed=seed, data_seed=7)) for seed in (0, 1)]
    counts = [{name: one["n"] for name, one in result.metrics[0]["sites"].items()} for result in starts]
    assert counts[0] == counts[1], "the same patients"
    assert not np.array_equal(starts[0].arrays["x"], starts[1].arrays["x"]), "another start"
    assert torch.equal(*(load_site(data(seed=seed, **{"data-seed": 7}), 1, 3).train.rows for seed in (0, 1)))


@pytest.mark.parametrize("label", ["label", "lab", "outcome"])
def test_without_its_label_column_all_else_that_is_wrong_is_said_at_once(tmp_path: Path, label: str) -> None:
    """A column of words alone may be the label; of numbers with a word among them the word is wrong."""
    file = tmp_path / "patients.csv"
    file.write_text("age,crp,lab9,sex\n50,1.5,1,f\n61,oops,0,m\n70,1e300,1,f\n")
    with pytest.raises(DataError) as caught:
        read_grouped(str(file), label, True, "pid", None)
    head, *lines = str(caught.value).splitlines()
    assert head == "4 problems with the data:"
    expected = ("group-column 'pid'", f"label column '{label}'", "'oops'", "must be within")
    assert all(said in line for line, said in zip(lines, expected, strict=True))
    assert "set label to the name of one of its columns, which are age, crp, lab9, sex" in lines[1]
    assert ("Did you mean 'lab9'" in lines[1]) == (label == "lab")
    assert "oops" not in caught.value.public
