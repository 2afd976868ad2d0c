"""A prediction study on OMOP: one text on two databases gives the table of an independent computation with pandas."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from edelweiss.client_app.cli import main
from edelweiss.client_app.commands.extract import query_of
from edelweiss.client_app.extract.source import PASSWORD
from edelweiss.common import ConfigError
from edelweiss.config.study import read_study, read_study_file
from edelweiss.datasets import DataConfig, load_site
from tests.client_app.omop import TABLES, frames, names, tables
from tests.client_app.postgres import Server

PERSONS = 10_000
STUDY = """
file = "data.parquet"
patient = "patient"
[label]
column = "failure"
negative = ["0"]
positive = ["1"]
[columns.age]
[columns.sex]
codes = { male = 0, female = 1 }
[columns.hypertension]
[columns.metformin]
[columns.glucose]
unit = "mg/dl"
[columns.echo]
[columns.stays]
[extract.target]
of = "condition"
concepts = [201820]
without = [201254]
since = 2010-01-01
until = 2019-12-31
observed = 180
[extract.outcome]
of = "condition"
concepts = [316866]
window = [1, 730]
[extract.features]
age = { of = "age" }
sex = { of = "sex" }
hypertension = { of = "condition", concepts = [321588], window = [-1000, 0] }
metformin = { of = "drug", concepts = [1503297], value = "count", window = [-730, -1] }
glucose = { of = "measurement", concepts = [3004410], value = "last", units = { "8840" = 1, "8753" = 18.016 } }
echo = { of = "procedure", concepts = [4336464] }
stays = { of = "visit", concepts = [9201], value = "count" }
"""
LABEL, FEATURES = "failure", ["age", "sex", "hypertension", "metformin", "glucose", "echo", "stays"]


@pytest.fixture(scope="module")
def rows() -> dict[str, list[tuple[object, ...]]]:
    return tables(PERSONS, 5)


@pytest.fixture(scope="module")
def right(rows: dict[str, list[tuple[object, ...]]]) -> pd.DataFrame:
    return expected(rows)


def expected(rows: dict[str, list[tuple[object, ...]]]) -> pd.DataFrame:
    """Compute the study's table with pandas, from the words of the page and not from the query."""
    cdm = frames(rows)
    above = cdm["concept_ancestor"]

    def below(*concepts: int) -> set[int]:
        return set(above[above.ancestor_concept_id.isin(concepts)].descendant_concept_id)

    def events(table: str, domain: str, start: str, concepts: set[int]) -> pd.DataFrame:
        found = cdm[table]
        found = found[found[f"{domain}_concept_id"].isin(concepts)]
        return found.assign(at=pd.to_datetime(found[start])).set_index("person_id", drop=False)

    target = events("condition_occurrence", "condition", "condition_start_date", below(201820) - below(201254))
    index = target.groupby(level=0)["at"].min()
    failures = events("condition_occurrence", "condition", "condition_start_date", below(316866))
    periods = cdm["observation_period"].assign(
        begin=lambda f: pd.to_datetime(f.observation_period_start_date),
        end=lambda f: pd.to_datetime(f.observation_period_end_date),
    )
    day = pd.Timedelta(days=1)
    kept = {}
    for person, group in periods.groupby("person_id"):
        if person not in index.index or not pd.Timestamp("2010-01-01") <= index[person] <= pd.Timestamp("2019-12-31"):
            continue
        at = index[person]
        around = group[(group.begin <= at - 180 * day) & (group.end >= at)]
        if not len(around):
            continue
        own = failures.loc[[person], "at"] if person in failures.index else pd.Series(dtype="datetime64[ns]")
        if (own < at + 1 * day).any():
            continue
        ill = ((own >= at + 1 * day) & (own <= at + 730 * day)).any()
        if ill or around.end.max() >= at + 730 * day:
            kept[person] = (at, int(ill))
    people = cdm["person"].set_index("person_id").loc[list(kept)]
    at = pd.Series({person: when for person, (when, _) in kept.items()})

    def within(found: pd.DataFrame, low: int, high: int) -> pd.DataFrame:
        found = found[found.index.isin(at.index)]
        days = (found["at"] - at.loc[found.index].to_numpy()).dt.days
        return found[(days >= low) & (days <= high)]

    def counted(found: pd.DataFrame) -> pd.Series:
        return found.groupby(level=0).size().reindex(at.index, fill_value=0)

    month, dom = people.month_of_birth.fillna(7), people.day_of_birth.fillna(1)
    before = (at.dt.month < month) | ((at.dt.month == month) & (at.dt.day < dom))
    sugar = events("measurement", "measurement", "measurement_date", below(3004410))
    sugar = sugar[sugar.value_as_number.notna() & sugar.unit_concept_id.isin([8840, 8753])]
    sugar = within(sugar.assign(moment=sugar.measurement_datetime.fillna("")), -365, 0)
    last = sugar.rename_axis("key").sort_values(["at", "moment", "measurement_id"]).groupby("person_id").tail(1)
    last = last.value_as_number * np.where(last.unit_concept_id == 8753, 18.016, 1.0)
    pressure = events("condition_occurrence", "condition", "condition_start_date", below(321588))
    drugs = events("drug_exposure", "drug", "drug_exposure_start_date", below(1503297))
    echoes = events("procedure_occurrence", "procedure", "procedure_date", below(4336464))
    stays = events("visit_occurrence", "visit", "visit_start_date", below(9201))
    table = pd.DataFrame(
        {
            "age": at.dt.year - people.year_of_birth - before.astype(int),
            "sex": people.gender_concept_id.map({8507: "male", 8532: "female"}),
            "hypertension": (counted(within(pressure, -1000, 0)) > 0).astype(int),
            "metformin": counted(within(drugs, -730, -1)),
            "glucose": last.reindex(at.index),
            "echo": (counted(within(echoes, -365, 0)) > 0).astype(int),
            "stays": counted(within(stays, -365, 0)),
            "failure": pd.Series({person: ill for person, (_, ill) in kept.items()}),
        }
    )
    return table.rename_axis("patient").sort_index().reset_index()


def in_sqlite(rows: dict[str, list[tuple[object, ...]]], file: Path) -> str:
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        for table, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
            marks = ", ".join("?" * len(names(table)))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[table])
    connection.close()
    return f"sqlite:///{file}"


def in_postgres(rows: dict[str, list[tuple[object, ...]]], server: Server) -> str:
    import psycopg

    with psycopg.connect(server.address, password=server.password) as connection, connection.cursor() as cursor:
        for table, columns in TABLES.items():
            cursor.execute(f"CREATE TABLE {table} ({columns})".encode())
            with cursor.copy(f"COPY {table} FROM STDIN".encode()) as copy:
                for row in rows[table]:
                    copy.write_row(row)
            cursor.execute(f"ANALYZE {table}".encode())
    return server.address


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_the_table_is_that_of_pandas(
    engine: str,
    rows: dict[str, list[tuple[object, ...]]],
    right: pd.DataFrame,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if engine == "sqlite":
        address = in_sqlite(rows, tmp_path / "omop.sqlite")
    else:
        server = request.getfixturevalue("postgres")
        address = in_postgres(rows, server)
        monkeypatch.setenv(PASSWORD, server.password)
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    where = ["--data-dir", str(tmp_path / "data"), "--state-dir", str(tmp_path / "state")]
    assert main(["extract", "--study", str(study), "--source", address, "--yes", *where]) == 0
    table = parquet.read_table(tmp_path / "data" / "data.parquet").to_pandas()
    assert 300 < len(right) < PERSONS / 2
    assert 0.02 < right[LABEL].mean() < 0.9
    assert list(table.columns) == list(right.columns)
    pd.testing.assert_frame_equal(table, right, check_dtype=False, rtol=1e-12)
    assert all(right[name].nunique() > 1 for name in FEATURES)
    assert right["glucose"].isna().any() and right["sex"].isna().any()  # noqa: PT018
    data = load_site(DataConfig(dataset="site", data_dir=str(tmp_path / "data"), study=read_study(str(study))), 0, 1)
    assert len(data.train) + len(data.held_out) == len(right)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("window = [1, 730]", "window = [0, 730]", "extract.outcome.window"),
        ("window = [-730, -1]", "window = [-730, 1]", "extract.features.metformin.window"),
        ('echo = { of = "procedure", concepts = [4336464] }', "", "extract.features"),
        ("[columns.echo]", "", "extract.features"),
        ('units = { "8840" = 1, "8753" = 18.016 }', "units = {}", "extract.features.glucose.units"),
        ('"8840" = 1', '"8840; DROP TABLE person" = 1', "extract.features.glucose.units"),
        ("concepts = [316866]", 'concepts = ["316866"]', "extract.outcome.concepts.0"),
        (", concepts = [4336464] }", " }", "extract.features.echo.concepts"),
        ("[extract.target]", '[extract]\nquery = "SELECT 1"\n[extract.target]', "extract"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, old: str, new: str, key: str) -> None:
    assert old in STUDY
    file = tmp_path / "study.toml"
    file.write_text(STUDY.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        read_study_file(str(file))
    assert key in caught.value.keys


def test_a_name_of_a_column_cannot_end_its_quotes(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    name = 'echo" FROM person; --'
    file.write_text(STUDY.replace("[columns.echo]", f"[columns.'{name}']").replace("echo =", f"'{name}' ="))
    query = query_of("", read_study_file(str(file)), str(file))
    assert 'AS "echo"" FROM person; --"' in query
