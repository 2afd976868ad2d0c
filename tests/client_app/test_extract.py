"""``edelweiss-site extract`` with real databases: SQLite, and a PostgreSQL of the tests' own."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from edelweiss.client_app.audit import Audit
from edelweiss.client_app.cli import main
from edelweiss.client_app.extract.source import DATABASES, PASSWORD, ExtractError, Source, one_statement
from edelweiss.config.study import read_study
from edelweiss.datasets import DataConfig, DataError, load_site
from tests.client_app.postgres import Server
from tests.said import has

QUERY = "SELECT id AS patient, age, sex, ldl, died FROM visits ORDER BY n"
STUDY = """
file = "data.parquet"
patient = "patient"
[label]
column = "died"
negative = ["0"]
positive = ["1"]
[columns.age]
range = [0, 120]
[columns.sex]
codes = { f = 0, m = 1 }
[columns.ldl]
unit = "mmol/l"
"""
LARGE = 2**62  # ids that no float holds


def rows(count: int = 60) -> list[tuple[int, int | None, str, float | None, int]]:
    return [
        (LARGE + n // 2, None if n == 7 else 40 + n % 30, "fm"[n % 2], None if n % 5 == 0 else n / 8, int(n % 3 == 0))
        for n in range(count)
    ]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    file = tmp_path / "hospital.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute(
            "CREATE TABLE visits (n INTEGER PRIMARY KEY, id INTEGER, age INTEGER, sex TEXT, ldl REAL, died INTEGER)"
        )
        connection.executemany("INSERT INTO visits VALUES (NULL, ?, ?, ?, ?, ?)", rows())
    connection.close()
    return file


class Site:
    """A hospital's folders and study file."""

    def __init__(self, folder: Path, query: str = QUERY) -> None:
        self.data, self.state, self.study = folder / "data", folder / "state", folder / "study.toml"
        self.study.write_text(f'{STUDY}\n[extract]\nquery = """{query}"""\n')

    def extract(self, source: str, *more: str) -> int:
        where = ["--data-dir", str(self.data), "--state-dir", str(self.state)]
        return main(["extract", "--study", str(self.study), "--source", source, *where, *more])

    @property
    def acts(self) -> list[str]:
        return [line["act"] for _, line in Audit(self.state).lines()]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def address(file: Path) -> str:
    return f"sqlite:///{file}"


def says(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


# ---------------------------------------------------------------------- what is written


def holds_all_rows(site: Site) -> None:
    """The table is the query's, as the study's readers see it, and the record says what it is."""
    frame = parquet.read_table(site.data / "data.parquet").to_pandas(integer_object_nulls=True)
    expected = pd.DataFrame(rows(), columns=["patient", "age", "sex", "ldl", "died"])
    assert frame["patient"].tolist() == expected["patient"].tolist()
    assert frame["age"].tolist() == [age for _, age, *_ in rows()]
    np.testing.assert_array_equal(frame["ldl"], expected["ldl"])
    record = json.loads((site.data / "extract.json").read_text())
    assert (record["rows"], record["patients"]) == (60, 30)
    assert {one["name"]: one["missing"] for one in record["columns"]} == {
        "patient": 0, "age": 1, "sex": 0, "ldl": 12, "died": 0,
    }  # fmt: skip
    assert sorted(path.name for path in site.data.iterdir()) == ["data.parquet", "extract.json"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in site.data.iterdir()), "others have no business with rows"
    [act] = site.acts
    assert record["query-sha256"] in act
    assert all(text in act for text in ("60 rows", "30 patients", "ldl", record["database"]))
    config = DataConfig(dataset="site", data_dir=str(site.data), study=read_study(str(site.study)))
    data = load_site(config, 0, 1)
    assert len(data.train) + len(data.held_out) == 60
    assert (data.train.inputs.shape[1], int(data.train.inputs.isnan().sum())) == (3, 13)  # of all rows


def test_sqlite(
    site: Site, database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    says(monkeypatch, "yes\n")
    assert site.extract(address(database)) == 0
    holds_all_rows(site)
    said = capsys.readouterr().out
    assert QUERY in said
    assert "12 (20.0%)" in said  # of ldl, before the question


def test_postgresql(
    site: Site, postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    postgres.execute(
        "DROP TABLE IF EXISTS visits",
        "CREATE TABLE visits (n SERIAL, id BIGINT, age SMALLINT, sex TEXT, ldl NUMERIC(10, 4), died INTEGER)",
        *("INSERT INTO visits (id, age, sex, ldl, died) VALUES " + str(row).replace("None", "NULL") for row in rows()),
    )
    assert site.extract(postgres.address, "--yes") == 1  # it asks for a password
    assert not site.data.exists() or not list(site.data.iterdir())
    monkeypatch.setenv(PASSWORD, postgres.password)
    assert site.extract(postgres.address, "--yes") == 0
    holds_all_rows(site)
    monkeypatch.setenv(PASSWORD, "wrong")
    secret = tmp_path / "secret"
    secret.write_text(postgres.password + "\n")
    assert site.extract(postgres.address, "--yes", "--password-file", str(secret)) == 0
    left = [path.read_bytes() for folder in (site.data, site.state) for path in folder.rglob("*") if path.is_file()]
    said = capfd.readouterr()
    assert not any(postgres.password.encode() in text for text in [*left, said.out.encode(), said.err.encode()])


def test_postgresql_has_a_draft(postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    postgres.execute(
        "DROP TABLE IF EXISTS cohort",
        "CREATE TABLE cohort (pid BIGINT, age SMALLINT, ldl NUMERIC(10, 4), seen DATE, sepsis BOOLEAN, ward TEXT)",
        f"INSERT INTO cohort SELECT {LARGE} + n / 2, 40 + n % 30, n / 8.0, DATE '2026-01-01' + n, n % 3 = 0, "
        "CASE n % 2 WHEN 0 THEN 'ICU' END FROM generate_series(1, 200) AS n",
    )
    monkeypatch.setenv(PASSWORD, postgres.password)
    (query := tmp_path / "q.sql").write_text(
        "SELECT pid, age, ldl, seen, sepsis, COALESCE(ward, 'general') AS ward FROM cohort;"
    )
    out = tmp_path / "study.toml"
    source = ["--source", postgres.address, "--query", str(query), "--label", "sepsis", "--patient", "pid"]
    assert main(["study", "draft", *source, "--out", str(out)]) == 0
    assert postgres.password not in out.read_text()
    # The draft itself is what `extract` runs, and what reads the table that comes of it.
    where = ["--data-dir", str(tmp_path / "data"), "--state-dir", str(tmp_path / "state")]
    assert main(["extract", "--study", str(out), "--source", postgres.address, "--yes", *where]) == 0
    study = read_study(str(out))
    assert study.features() == ["age", "ldl", "ward"]
    frame = study.read(tmp_path / "data" / "data.parquet").frame
    assert (len(frame), frame["pid"].nunique()) == (200, 101)
    assert frame["ldl"].tolist() == pytest.approx([n / 8 for n in range(1, 201)])
    assert frame["ward"].tolist() == [float(n % 2 == 0) for n in range(1, 201)]
    assert frame["sepsis"].tolist() == [str(int(n % 3 == 0)) for n in range(1, 201)]


def test_postgresql_cannot_be_written_and_stops_in_time(
    site: Site, postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.execute("DROP TABLE IF EXISTS kept", "CREATE TABLE kept (a INTEGER)", "INSERT INTO kept VALUES (1)")
    monkeypatch.setenv(PASSWORD, postgres.password)
    own = tmp_path / "own.sql"
    for text in ("WITH gone AS (DELETE FROM kept RETURNING a) SELECT a FROM gone", "SELECT 1 AS a; DROP TABLE kept"):
        own.write_text(text)
        assert site.extract(postgres.address, "--yes", "--query", str(own)) == 1
    source = Source.of(postgres.address)
    with source.answer("SELECT count(*) FROM kept", 60, postgres.password) as (_, answer):
        assert list(answer.parts) == [[(1,)]]
    with (
        pytest.raises(ExtractError, check=has("--timeout", 0.2)),
        source.answer("SELECT pg_sleep(60)", 0.2, postgres.password) as (_, answer),
    ):
        list(answer.parts)


def test_sqlite_cannot_be_written_and_stops_in_time(database: Path) -> None:
    source = Source.of(address(database))
    for text in ("WITH a AS (SELECT 1) DELETE FROM visits", "SELECT 1; DELETE FROM visits"):
        with pytest.raises(ExtractError), source.answer(text, 60) as (_, answer):
            list(answer.parts)
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(ExtractError, check=has("--timeout", 0.2)), source.answer(endless, 0.2) as (_, answer):
        list(answer.parts)
    with source.answer("SELECT count(*) FROM visits", 60) as (_, answer):
        assert list(answer.parts) == [[(60,)]]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1] * 30_000 + [None, 2.5], "double", [1.0] * 30_000 + [None, 2.5]),  # the types of two parts differ
        ([None] * 30_000 + ["x"], "string", [None] * 30_000 + ["x"]),
        ([1, "x", None], "string", ["1", "x", None]),
        ([None, None], "null", [None, None]),
        ([LARGE, LARGE + 1], "int64", [LARGE, LARGE + 1]),
    ],
)
def test_a_column_has_the_type_of_all_its_values(
    tmp_path: Path, values: list[object], kind: str, expected: list[object]
) -> None:
    with sqlite3.connect(file := tmp_path / "a.sqlite") as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
    connection.close()
    own = tmp_path / "own.sql"
    own.write_text("SELECT a FROM t ORDER BY rowid;")
    where = ["--data-dir", str(tmp_path / "data"), "--state-dir", str(tmp_path / "state")]
    assert main(["extract", "--source", address(file), "--query", str(own), "--yes", *where]) == 0
    table = parquet.read_table(tmp_path / "data" / "data.parquet")
    assert str(table.schema.field("a").type) == kind
    assert table["a"].to_pylist() == expected


def test_ids_of_64_bits_in_a_table_without_a_study_file(tmp_path: Path) -> None:
    """They are patients if they are named so; else they are refused as identifiers, not for their size."""
    folder = tmp_path / "data"
    folder.mkdir()
    frame = pd.DataFrame({"person_id": LARGE + np.arange(60) // 2, "ldl": np.arange(60) / 8, "label": [0, 1, 1] * 20})
    frame.to_parquet(folder / "data.parquet")
    with pytest.raises(DataError, check=has("patient", key="person_id", row=1)):
        load_site(DataConfig(dataset="site", data_dir=str(folder)), 0, 1)
    data = load_site(DataConfig(dataset="site", data_dir=str(folder), patient="person_id", folds=2), 0, 1)
    assert data.features == ("ldl",)
    train, held_out = (set(part.rows.numpy() // 2) for part in (data.train, data.held_out))
    assert not train & held_out  # both rows of a patient are in one part, though a float holds their ids equal


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("answer", ["no\n", "", "perhaps\n"])
def test_only_a_yes_writes(site: Site, database: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    says(monkeypatch, answer)
    assert site.extract(address(database)) == 1
    assert list(site.data.iterdir()) == []
    assert site.acts == []


def test_cron_runs_no_query_that_nobody_has_approved(
    site: Site, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, "yes\n")
    assert site.extract(address(database)) == 0
    assert site.extract(address(database), "--yes") == 0
    before = (site.data / "data.parquet").read_bytes()
    Site(tmp_path, QUERY.replace("FROM", ", id AS also FROM"))  # the coordinator sends out another study file
    assert site.extract(address(database), "--yes") == 1
    assert (site.data / "data.parquet").read_bytes() == before
    says(monkeypatch, "yes\n")
    assert site.extract(address(database)) == 0
    assert len(site.acts) == 3


@pytest.mark.parametrize(
    "query",
    ["SELECT id AS patient, age FROM visits", "SELECT 1 FROM nothing", "SELECT * FROM visits WHERE 0", "SELEC 1",
     "DELETE FROM visits", "", "SELECT id AS patient, age, age, sex, ldl, died FROM visits"],
)  # fmt: skip
def test_a_bad_query_leaves_the_table_that_was_there(
    site: Site, database: Path, tmp_path: Path, query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.extract(address(database), "--yes") == 0
    before = {path.name: path.read_bytes() for path in site.data.iterdir()}
    (site.data / "extract.json").unlink()
    own = tmp_path / "own.sql"
    own.write_text(query)
    assert site.extract(address(database), "--yes", "--query", str(own)) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert (site.data / "data.parquet").read_bytes() == before["data.parquet"]
    assert [path.name for path in site.data.iterdir()] == ["data.parquet"]


@pytest.mark.parametrize(
    "source",
    [
        "postgresql://reader:secret@db/omop",
        "postgresql://db/omop?user=reader&password=secret",
        "mysql://reader@db/omop",
        "postgrsql://reader@db/omop",
        "sqlite:///nothing/there.sqlite",
        "sqlite://",
        "a database",
    ],
)
def test_an_address_is_refused(site: Site, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.extract(source, "--yes") == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: source: ")
    assert "secret" not in said.err + said.out
    assert not site.data.exists()


def test_a_study_of_several_at_a_site_gets_its_own_table(
    site: Site, database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--study NAME`` is a table [studies.NAME] of the settings; patients are counted as its readers count them."""
    spelt = "CASE n % 2 WHEN 0 THEN '00' || (n / 2) ELSE (n / 2) || '.0' END"  # two spellings of each but one
    Site(tmp_path, f"SELECT {spelt} AS pid, age, sex, ldl, died FROM visits")
    site.study.write_text(site.study.read_text().replace('patient = "patient"\n', ""))
    (settings := tmp_path / "site.toml").write_text(
        f'data-dir = "{tmp_path}/above"\nstate-dir = "{site.state}"\n[policy]\npatient = "pid"\n'
        f'[studies.falls]\nstudy-key = "{"0" * 64}"\ndata-dir = "{site.data}"\nstudy = "{site.study}"\n'
        f'[studies.sepsis]\nstudy-key = "{"1" * 64}"\ndata-dir = "{tmp_path}/sepsis"\n'
    )
    common = ["extract", "--policy", str(settings), "--source", address(database), "--yes"]
    assert main([*common, "--study", "falls"]) == 0
    config = DataConfig(dataset="site", data_dir=str(site.data), study=read_study(str(site.study)), patient="pid")
    ids = load_site(config, 0, 1).patient_ids
    assert ids is not None
    assert json.loads((site.data / "extract.json").read_text())["patients"] == len(set(ids.tolist())) == 31
    [act] = site.acts
    assert "data.parquet of study falls" in act
    assert not (tmp_path / "above").exists()
    capsys.readouterr()
    for options, code, said in (
        (["--study", "fals"], 2, "falls, sepsis"),
        (["--study", "sepsis"], 1, "--query"),  # it has no study file, and takes none of another
        (["--study", "falls", "--patient", "who"], 1, "'who'"),
    ):
        assert main([*common, *options]) == code
        assert said in capsys.readouterr().err
    settings.write_text(settings.read_text().replace(f'data-dir = "{tmp_path}/above"\n', ""))
    assert main(common) == 2
    assert "--study falls" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["/etc/passwd", "../own.sql", "folder/../../own.sql", "a\\nb"])
def test_a_study_file_names_no_file_outside_its_folder(
    site: Site, database: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes from a coordinator; what its files hold is printed."""
    site.study.write_text(f'{STUDY}\n[extract]\nquery-file = "{file}"\n')
    assert site.extract(address(database), "--yes") == 2
    assert "query-file" in capsys.readouterr().err
    assert not site.data.exists()


def test_a_damaged_log_is_not_written_on(site: Site, database: Path) -> None:
    assert site.extract(address(database), "--yes") == 0
    before = (site.data / "data.parquet").read_bytes()
    log = site.state / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b"60 rows", b"61 rows"))
    assert site.extract(address(database), "--yes") == 1
    assert (site.data / "data.parquet").read_bytes() == before


def test_a_query_is_one_that_reads() -> None:
    assert one_statement("-- the cohort\n/* of\n2026 */ select 1 ;\n") == "-- the cohort\n/* of\n2026 */ select 1"
    assert one_statement("WITH a AS (SELECT 1) SELECT * FROM a").startswith("WITH")
    for text in ("", "-- nothing", "INSERT INTO a VALUES (1)", "withdraw", "/* SELECT */ DROP TABLE a"):
        with pytest.raises(ExtractError):
            one_statement(text)


# ---------------------------------------------------------------------- databases without a server here


@pytest.mark.parametrize("name", ["oracle", "mssql"])
def test_a_driver_is_found_and_reports_that_nobody_answers(name: str) -> None:
    """As far as that goes without a server: SQLAlchemy's dialect loads, the driver connects, its error is a line."""
    pytest.importorskip(DATABASES[name].package, reason=f"{name}'s driver is not installed")
    source = Source.of(f"{name}://reader@127.0.0.1:1/omop")
    with pytest.raises(ExtractError) as caught, source.answer("SELECT 1 AS a", 5, "secret"):
        pass
    assert str(caught.value).startswith(DATABASES[name].name)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
