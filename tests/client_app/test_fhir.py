"""A study on a FHIR bulk export: the table is that of an independent computation, and that of OMOP's tables."""

from __future__ import annotations

import gzip
import io
import json
import re
import sqlite3
from collections import defaultdict
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import parquet

from edelweiss.client_app.audit import Audit
from edelweiss.client_app.cli import main
from edelweiss.client_app.extract.fhir import Export
from edelweiss.client_app.extract.source import ExtractError, source_at
from edelweiss.common import ConfigError
from edelweiss.config.extract import read_value_set
from edelweiss.config.study import read_study, read_study_file
from edelweiss.datasets import DataConfig, DataError, load_site
from tests.client_app.fhir import Writer, write
from tests.client_app.omop import TABLES, names, tables
from tests.said import has

pytest.importorskip("duckdb", reason="DuckDB is not installed")

PERSONS = 2000
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
[columns.heart]
[columns.metformin]
[columns.glucose]
unit = "mg/dl"
[columns.echo]
[columns.stays]
[extract.target]
of = "condition"
concepts = [201820,
  "http://snomed.info/sct|73211009",
  "http://snomed.info/sct|44054006",
  "http://snomed.info/sct|422034002",
  "http://snomed.info/sct|46635009",
]
without = [201254, "http://snomed.info/sct|46635009"]
since = 2010-01-01
until = 2019-12-31
observed = 180
[extract.outcome]
of = "condition"
concepts = [316866, "http://snomed.info/sct|38341003"]
window = [1, 730]
[extract.features]
age = { of = "age" }
sex = { of = "sex" }
stays = { of = "visit", concepts = [9201, "http://terminology.hl7.org/CodeSystem/v3-ActCode|IMP"], value = "count" }
[extract.features.heart]
of = "condition"
concepts = [321588]
value-sets = ["heart.json"]
window = [-1000, 0]
[extract.features.metformin]
of = "drug"
concepts = [1503297,
  "http://www.nlm.nih.gov/research/umls/rxnorm|6809",
  "http://www.nlm.nih.gov/research/umls/rxnorm|860975",
]
value = "count"
window = [-730, -1]
[extract.features.glucose]
of = "measurement"
concepts = [3004410, "http://loinc.org|2345-7"]
value = "last"
units = { "8840" = 1, "8753" = 18.016, "mg/dL" = 1, "mmol/L" = 18.016 }
[extract.features.echo]
of = "procedure"
concepts = [4336464, "http://snomed.info/sct|40701008"]
"""
HEART = {
    "resourceType": "ValueSet",
    "expansion": {
        "total": 3,
        "contains": [
            {
                "system": "http://snomed.info/sct",
                "code": "56265001",
                "contains": [
                    {"system": "http://snomed.info/sct", "code": "84114007"},
                    {"system": "http://snomed.info/sct", "code": "48447003"},
                ],
            }
        ],
    },
}
FEATURES = ["age", "sex", "heart", "metformin", "glucose", "echo", "stays"]


class Site:
    """A hospital's folders, its study file and its export."""

    def __init__(self, folder: Path) -> None:
        self.data, self.state, self.study = folder / "data", folder / "state", folder / "study.toml"
        self.export = folder / "export"
        self.study.write_text(STUDY)
        (folder / "heart.json").write_text(json.dumps(HEART))

    def extract(self, *more: str, source: str = "") -> int:
        where = ["--data-dir", str(self.data), "--state-dir", str(self.state)]
        return main(
            ["extract", "--study", str(self.study), "--source", source or f"fhir:{self.export}", "--yes", *where, *more]
        )

    def table(self) -> pd.DataFrame:
        return parquet.read_table(self.data / "data.parquet").to_pandas()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def small(site: Site, persons: int = 150) -> None:
    write(site.export, Writer(tables(persons, 3), 4, vague=False).all)


# ---------------------------------------------------------------------- the same table


def resources(folder: Path) -> dict[str, dict[str, Any]]:
    """Read an export: the newest version of each resource by its id, by type."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for file in folder.iterdir():
        if ".ndjson" not in file.name:
            continue
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8-sig")
        for line in filter(str.strip, text.split("\n")):
            one = json.loads(line)
            if "resourceType" not in one or one["resourceType"] == "Practitioner":
                continue
            same = found[one["resourceType"]]
            former = same.get(one["id"])
            if former is None or instant(one) > instant(former):
                same[one["id"]] = one
    return found


def instant(one: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(one["meta"]["lastUpdated"])


def on(text: str | None) -> date | None:
    """Return the date of a text; the month unknown is July, the day the first."""
    try:
        return date.fromisoformat({4: f"{text}-07-01", 7: f"{text}-01"}.get(len(text), text[:10])) if text else None
    except ValueError:
        return None


def expected(folder: Path) -> pd.DataFrame:
    """Compute the study's table in plain Python, from the words of the page and not from the query."""
    found = resources(folder)
    people = found["Patient"]

    def person(one: dict[str, Any]) -> str:
        reference = one.get("subject", {}).get("reference", "").removesuffix("/_history/3")
        if reference.startswith("urn:uuid:"):
            return reference.removeprefix("urn:uuid:")
        *_, kind, name = ["", *reference.split("/")] if "/" in reference else ("", "", "")
        return name if kind == "Patient" else ""

    def codes(concept: dict[str, Any] | None) -> set[str]:
        return {f"{one.get('system')}|{one['code']}" for one in (concept or {}).get("coding", [])}

    def events(kind: str, wanted: set[str]) -> dict[str, list[tuple[date, dict[str, Any]]]]:
        """Return each person's resources with one of these codes, with their dates."""
        chosen = defaultdict(list)
        for one in found[kind].values():
            status = [one.get("status"), *(c["code"] for c in one.get("verificationStatus", {}).get("coding", []))]
            if (
                set(status) & {"entered-in-error", "refuted"}
                or one.get("doNotPerform")
                or one.get("intent") == "proposal"
            ):
                continue
            written, own = None, one.get("code")
            match kind:
                case "Condition":
                    written = (
                        one.get("onsetDateTime") or one.get("onsetPeriod", {}).get("start") or one.get("recordedDate")
                    )
                case "Encounter":
                    written, own = one["period"]["start"], {"coding": [one["class"]]}
                case "MedicationRequest":
                    written, own = one.get("authoredOn"), one.get("medicationCodeableConcept")
                    if reference := one.get("medicationReference", {}).get("reference"):
                        if reference == "#m":
                            own = one["contained"][1]["code"]
                        else:
                            name = reference.removesuffix("/_history/3").replace("urn:uuid:", "/").rpartition("/")[2]
                            own = found["Medication"][name]["code"]
                case "Procedure":
                    written = one.get("performedDateTime") or one.get("performedPeriod", {}).get("start")
            if (day := on(written)) and codes(own) & wanted:
                chosen[person(one)].append((day, one))
        return chosen

    snomed = "http://snomed.info/sct|"
    target = events("Condition", {f"{snomed}{code}" for code in ("73211009", "44054006", "422034002")})
    outcome = events("Condition", {f"{snomed}38341003"})
    heart = events("Condition", {f"{snomed}{code}" for code in ("56265001", "84114007", "48447003")})
    rxnorm = "http://www.nlm.nih.gov/research/umls/rxnorm|"
    drugs = events("MedicationRequest", {f"{rxnorm}6809", f"{rxnorm}860975"})
    echoes = events("Procedure", {f"{snomed}40701008"})
    act = "http://terminology.hl7.org/CodeSystem/v3-ActCode|"
    stays, visits = events("Encounter", {f"{act}IMP"}), events("Encounter", {f"{act}IMP", f"{act}EMER"})
    sugar = defaultdict(list)
    for one in found["Observation"].values():
        written = (
            one.get("effectiveDateTime") or one.get("effectiveInstant") or one.get("effectivePeriod", {}).get("start")
        )
        written = written or one.get("issued")
        if one["status"] == "entered-in-error" or (day := on(written)) is None:
            continue
        for number, part in enumerate([one, *one.get("component", [])]):
            quantity = part.get("valueQuantity", {})
            unit = quantity.get("code") or quantity.get("unit")
            if "http://loinc.org|2345-7" in codes(part["code"]) and unit in ("mg/dL", "mmol/L"):
                moment = datetime.fromisoformat(written).timestamp() if "T" in written else -1e18
                value = quantity["value"] * (18.016 if unit == "mmol/L" else 1)
                sugar[person(one)].append((day, moment, f"{one['id']}/{number}", value))

    rows = []
    for name, own in target.items():
        at = min(day for day, _ in own)
        if name not in people or name not in visits or not date(2010, 1, 1) <= at <= date(2019, 12, 31):
            continue
        begin = min(day for day, _ in visits[name])
        end = max(max(day, on(one["period"].get("end")) or day) for day, one in visits[name])
        if (at - begin).days < 180 or end < at:
            continue
        later = [(day - at).days for day, _ in outcome[name]]
        ill = any(1 <= days <= 730 for days in later)
        if any(days < 1 for days in later) or not (ill or (end - at).days >= 730):
            continue
        born = people[name].get("birthDate")
        birth = on(born)
        measured = [one for one in sugar[name] if -365 <= (one[0] - at).days <= 0]
        rows.append(
            {
                "patient": name,
                "age": at.year - birth.year - ((at.month, at.day) < (birth.month, birth.day)) if birth else None,
                "sex": {"male": "male", "female": "female"}.get(people[name].get("gender", "")),
                "heart": int(any(-1000 <= (day - at).days <= 0 for day, _ in heart[name])),
                "metformin": sum(-730 <= (day - at).days <= -1 for day, _ in drugs[name]),
                "glucose": max(measured)[3] if measured else None,
                "echo": int(any(-365 <= (day - at).days <= 0 for day, _ in echoes[name])),
                "stays": sum(-365 <= (day - at).days <= 0 for day, _ in stays[name]),
                "failure": int(ill),
            }
        )
    return pd.DataFrame(rows).sort_values("patient").reset_index(drop=True)


@pytest.mark.slow
def test_the_table_is_that_of_plain_python(site: Site) -> None:
    written = Writer(tables(PERSONS, 5), 6, vague=True).all
    write(site.export, written)
    right = expected(site.export)
    assert site.extract() == 0
    table = site.table()
    assert 60 < len(right) < PERSONS / 2
    assert 0.02 < right["failure"].mean() < 0.9
    assert list(table.columns) == list(right.columns)
    pd.testing.assert_frame_equal(table, right, check_dtype=False, rtol=1e-12)
    assert all(right[name].nunique() > 1 for name in FEATURES)
    assert all(right[name].isna().any() for name in ("age", "sex", "glucose"))
    study = read_study(str(site.study))
    data = load_site(DataConfig(dataset="site", data_dir=str(site.data), study=study), 0, 1)
    assert len(data.train) + len(data.held_out) == len(right)


@pytest.mark.slow
def test_fhir_and_omop_give_one_table(site: Site, tmp_path: Path) -> None:
    """The same persons, study file and query; observed from the first visit to the last, as OMOP's tables then say."""
    rows = tables(PERSONS, 8)
    spans: dict[Any, list[str]] = defaultdict(list)
    for _, person, _, start, end, _ in rows["visit_occurrence"]:
        spans[person] += [str(start), str(end)]
    rows["observation_period"] = [
        (number, person, min(days), max(days), 32817) for number, (person, days) in enumerate(spans.items())
    ]
    with sqlite3.connect(tmp_path / "omop.sqlite") as connection:
        for table, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
            marks = ", ".join("?" * len(names(table)))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[table])
    connection.close()
    write(site.export, Writer(rows, 9, vague=False).all)
    assert site.extract() == 0
    fhir = site.table()
    assert site.extract("--query", str(approve(site)), source=f"fhir:{site.export}") == 0
    pd.testing.assert_frame_equal(site.table(), fhir)
    (site.data / "extract.json").unlink()  # else the other query is not the one that was approved
    assert site.extract(source=f"sqlite:///{tmp_path / 'omop.sqlite'}") == 0
    omop = site.table().astype({"patient": str})
    assert len(omop) > 60
    pd.testing.assert_frame_equal(fhir, omop, check_dtype=False, rtol=1e-12)


def test_the_page_has_a_study_file_that_runs(site: Site) -> None:
    page = (Path(__file__).parents[2] / "docs" / "databases.md").read_text()
    [study] = [text for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "http://loinc.org" in text]
    site.study.write_text(study)
    rows = tables(400, 3)
    ill = [(*row[:2], 316139 if row[2] == 444094 else row[2], *row[3:]) for row in rows["condition_occurrence"]]
    write(site.export, Writer(rows | {"condition_occurrence": ill}, 4, vague=False).all)
    assert site.extract() == 0
    table = site.table()
    assert 0 < table["failure"].mean() < 1
    assert table["glucose"].notna().any()


@pytest.mark.slow
def test_the_latest_of_a_day_is_the_latest_in_time_and_not_in_text(site: Site) -> None:
    small(site)
    assert site.extract() == 0
    patient, *_ = site.table()["patient"]
    found = resources(site.export)["Condition"].values()
    codes = ("73211009", "44054006", "422034002")
    own = [one for one in found if f"{patient}" in one["subject"].get("reference", "") and "refuted" not in str(one)]
    written = [
        one.get("onsetDateTime") or one.get("onsetPeriod", {}).get("start") or one.get("recordedDate")
        for one in own
        if "entered-in-error" not in str(one) and any(f"'{code}'" in str(one["code"]) for code in codes)
    ]
    index = min(text[:10] for text in written)
    lines = [
        {
            "resourceType": "Observation",
            "id": name,
            "status": "final",
            "code": {"coding": [{"system": "http://loinc.org", "code": "2345-7"}]},
            "subject": {"reference": f"Patient/{patient}"},
            "effectiveDateTime": f"{index}T{time}",
            "valueQuantity": {"value": value, "unit": "mg/dL"},
        }
        for name, time, value in (
            ("z1", "20:00:00+02:00", 1.0),
            ("a2", "19:00:00-05:00", 2.0),
            ("z3", "23:00:00Z", 3.0),
        )
    ]
    (site.export / "more.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert site.extract() == 0
    assert site.table().set_index("patient")["glucose"][patient] == 2.0


def approve(site: Site) -> Path:
    """Return a file with the query of the record, which runs by itself."""
    file = site.data.with_name("own.sql")
    file.write_text(json.loads((site.data / "extract.json").read_text())["query"])
    return file


# ---------------------------------------------------------------------- what is recorded, and asked


@pytest.mark.slow
def test_a_preview_says_what_is_left_out_and_the_record_what_was_read(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small(site)
    there = resources(site.export)["Condition"]
    refuted = sum("refuted" in str(one) or "entered-in-error" in str(one) for one in there.values())
    assert site.extract() == 0
    said = capsys.readouterr().out
    assert f"Condition: 3 files, {len(there):,} resources" in said
    assert f"{refuted:,} do not count" in said
    record = json.loads((site.data / "extract.json").read_text())
    assert record["database"].startswith("DuckDB ")
    assert record["source"] == f"fhir:{site.export}"
    assert any(f"{refuted:,} do not count" in note for note in record["notes"])
    [act] = [line["act"] for _, line in Audit(site.state).lines()]
    assert record["query-sha256"] in act
    # The next export, elsewhere, is read by the same query; a person is not asked again.
    site.export = site.export.rename(tmp_path / "next")
    assert site.extract() == 0
    site.study.write_text(STUDY.replace("[1, 730]", "[1, 700]"))
    assert site.extract() == 1
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    before = (site.data / "data.parquet").read_bytes()
    where = ["--study", str(site.study), "--data-dir", str(site.data), "--state-dir", str(site.state)]
    assert main(["extract", "--source", f"fhir:{site.export}", *where]) == 1
    assert (site.data / "data.parquet").read_bytes() == before
    assert sorted(path.name for path in site.data.iterdir()) == ["data.parquet", "extract.json"]


# ---------------------------------------------------------------------- what is refused


def refused(site: Site, capsys: pytest.CaptureFixture[str], *more: str, source: str = "") -> str:
    """Return the error of an extraction; nothing is written."""
    before = sorted(site.data.iterdir()) if site.data.exists() else []
    assert site.extract(*more, source=source) in (1, 2)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert "Doe" not in said.err + said.out  # a patient's name
    assert (sorted(site.data.iterdir()) if site.data.exists() else []) == before
    return said.err


LINES = {
    "cut": (b'{"resourceType": "Condition", "id": "a", "note": "Doe', 4),
    "no JSON": (b"Doe", 4),
    "two in a line": (b'{"resourceType": "Condition", "id": "a"}{"resourceType": "Condition", "id": "Doe"}', 4),
    "over two lines": (b'{"resourceType": "Condition",\n"id": "Doe"}', 4),
    "a list": (b'["Doe"]', 4),
    "not UTF-8": (b'{"resourceType": "Condition", "id": "Doe\xff"}', 4),
    "another type": (b'{"resourceType": "Patient", "id": "Doe"}', 4),
    "no id": (b'{"resourceType": "Condition", "name": "Doe"}', 4),
    "a key twice": (b'{"resourceType": "Condition", "id": "a", "id": "Doe"}', 4),
    "an object for a list": (b'{"resourceType": "Condition", "id": "a", "code": {"coding": {"code": "Doe"}}}', 4),
    "a text for an object": (b'{"resourceType": "Condition", "id": "a", "subject": "Doe"}', 4),
    "a status of R2": (b'{"resourceType": "Condition", "id": "a", "verificationStatus": "Doe"}', 4),
}


@pytest.mark.parametrize("name", ["Condition.ndjson", "1.Condition.ndjson.gz"])
@pytest.mark.parametrize("case", LINES)
def test_a_line_that_is_no_resource_is_named(
    site: Site, case: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small(site, 30)
    file, (line, number) = site.export / name, LINES[case]
    data = gzip.decompress(file.read_bytes()) if name.endswith(".gz") else file.read_bytes()
    parts = data.split(b"\n")
    new = b"\n".join([*parts[: number - 1], line, *parts[number - 1 :]])
    file.write_bytes(gzip.compress(new) if name.endswith(".gz") else new)
    assert f"{name}, line {number}: " in refused(site, capsys)


def test_a_number_that_is_none_is_named(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    small(site, 30)
    file = site.export / "Observation.ndjson"
    line = '{"resourceType": "Observation", "id": "a", "valueQuantity": {"value": "Doe"}}\n'
    file.write_text(line + file.read_text())
    text = refused(site, capsys)
    assert "Observation.ndjson, line 1: " in text
    assert "valueQuantity.value" in text


def test_a_file_that_was_not_copied_whole_is_named(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    small(site, 60)
    file = site.export / "1.Observation.ndjson.gz"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert f"{file}, after line " in refused(site, capsys)
    file.write_bytes(b"no gzip\n")
    assert f"{file}, after line 0: " in refused(site, capsys)


def test_a_type_without_a_file_is_named_and_an_empty_file_is_one(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    small(site)
    for kind in ("Procedure", "MedicationRequest"):
        for file in site.export.glob(f"*{kind}*"):
            file.unlink()
    text = refused(site, capsys)
    assert all(name in text for name in ("Procedure", "MedicationRequest", "MedicationRequest.ndjson"))
    (site.export / "Procedure.ndjson").touch()
    (site.export / "MedicationRequest.000.ndjson").touch()
    assert site.extract() == 0
    assert site.table()["echo"].tolist() == [0] * len(site.table())


def test_codes_of_another_system_are_named(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    small(site)
    for file in site.export.glob("*Observation*"):
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        data = data.replace(b"http://loinc.org", b"urn:oid:2.16.840.1.113883.6.1")
        file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    text = refused(site, capsys)
    assert all(
        word in text for word in ("extract.features.glucose", "http://loinc.org", "urn:oid:2.16.840.1.113883.6.1")
    )
    assert "extract.target" not in text


def test_a_place_that_has_no_export_is_refused(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(site, 10)
    (empty := tmp_path / "empty").mkdir()
    (bundle := tmp_path / "bundle").mkdir()
    (bundle / "a.json").write_text('{"resourceType": "Bundle"}')
    file = site.export / "Patient.ndjson"
    for source in (f"fhir:{empty}", f"fhir:{bundle}", f"fhir:{file}", "fhir:/nothing/there", "fhir:", str(site.export)):
        assert refused(site, capsys, source=source).startswith("error: source: "), source
    assert "$export" in refused(site, capsys, source="https://ehr.example.org/fhir")
    assert "$export" in refused(site, capsys, source=f"fhir:{bundle}")


def test_a_data_folder_with_an_export_or_a_database_points_to_extract(site: Site, tmp_path: Path) -> None:
    small(site, 10)
    with pytest.raises(DataError, check=has(f"--source fhir:{site.export}", key="data-dir")):
        load_site(DataConfig(dataset="site", data_dir=str(site.export)), 0, 1)
    (folder := tmp_path / "sql").mkdir()
    (folder / "omop.db").touch()
    with pytest.raises(DataError, check=has(f"--source sqlite:///{folder}/omop.db", key="data-dir")):
        load_site(DataConfig(dataset="site", data_dir=str(folder)), 0, 1)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('https://example.org/a.csv')",
        "SELECT 1 AS a; COPY (SELECT 1) TO '{export}/Patient.ndjson'",
        "COPY (SELECT 1) TO '{export}/Patient.ndjson'",
        "WITH a AS (SELECT 1) INSERT INTO Patient SELECT * FROM a",
        "SELECT * FROM '{export}/../study.toml'",
        "SELECT 1 AS a; SET enable_external_access = true",
        "SELECT * FROM Nothing",
        "SELECT id FROM Immunization",
    ],
)
def test_a_query_reads_the_export_alone(
    site: Site, tmp_path: Path, query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small(site, 10)
    before = {file: file.read_bytes() for file in site.export.iterdir()}
    own = tmp_path / "own.sql"
    own.write_text(query.format(export=site.export))
    refused(site, capsys, "--query", str(own))
    assert {file: file.read_bytes() for file in site.export.iterdir()} == before


def test_a_query_of_the_hospital_and_one_that_takes_too_long_or_too_much(site: Site, tmp_path: Path) -> None:
    small(site, 10)
    source = source_at(f"fhir:{site.export}")
    assert isinstance(source, Export)
    with source.answer("SELECT count(*), min(gender) FROM Patient", 60) as (_, answer):
        assert [tuple(row) for part in answer.parts for row in part] == [(10, "female")]
    endless = "SELECT count(*) FROM range(1000000000000) WHERE md5(range::VARCHAR) = ''"  # in hardly any memory
    vast = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b"
    for query, timeout, wrong in ((endless, 0.5, "--timeout"), (vast, 600, "512MB")):
        with pytest.raises(ExtractError, check=has(wrong)), source.answer(query, timeout) as (_, answer):
            list(answer.parts)


# ---------------------------------------------------------------------- codes in a study file


@pytest.mark.parametrize(
    ("code", "right"),
    [
        ("LOINC|2345-7", "http://loinc.org"),
        ("https://loinc.org/|2345-7", "http://loinc.org"),
        ("http://www.snomed.info/sct|1", "http://snomed.info/sct"),
        ("icd10cm|E11", "http://hl7.org/fhir/sid/icd-10-cm"),
        ("E11.9", "http://loinc.org|2160-0"),
        ("http://loinc.org|", "http://loinc.org|2160-0"),
        ("local|1", "http://snomed.info/sct"),
    ],
)
def test_a_code_that_is_none_is_refused_with_the_right_one(tmp_path: Path, code: str, right: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY.replace("http://loinc.org|2345-7", code))
    with pytest.raises(ConfigError, check=has(right, keys=["extract.features.glucose.concepts.1"])):
        read_study_file(str(file))


def test_a_study_for_omop_alone_is_refused_for_fhir_and_the_other_way_round(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    small(site, 10)
    site.study.write_text(re.sub(r',\s+"http://[^"]*"|, "mg/dL" = 1, "mmol/L" = 18.016|value-sets = .*', "", STUDY))
    text = refused(site, capsys)
    assert all(key in text for key in ("extract.target.concepts", "extract.features.glucose.units"))
    site.study.write_text(re.sub(r"concepts = \[\d+,", "concepts = [", STUDY))
    (site.export / "a.sqlite").touch()
    text = refused(site, capsys, source=f"sqlite:///{site.export / 'a.sqlite'}")
    assert "extract.outcome.concepts" in text
    assert "extract.features.heart" not in text


@pytest.mark.parametrize(
    "content",
    [
        "no JSON",
        "[]",
        '{"resourceType": "CodeSystem"}',
        '{"resourceType": "ValueSet"}',
        '{"resourceType": "ValueSet", "expansion": {"total": 9, "contains": [{"system": "urn:a", "code": "1"}]}}',
        '{"resourceType": "ValueSet", "expansion": {"contains": [{"system": "LOINC", "code": "1"}]}}',
        '{"resourceType": "ValueSet", "compose": {"include": [{"system": "http://loinc.org", "filter": []}]}}',
        '{"resourceType": "ValueSet", "expansion": {"contains": [5]}}',
    ],
)
def test_a_value_set_without_all_its_codes_is_refused(site: Site, tmp_path: Path, content: str) -> None:
    file = tmp_path / "heart.json"
    file.write_text(content)
    with pytest.raises(ConfigError, check=has(file)):
        read_value_set(file)


def test_a_value_set_may_list_its_codes(tmp_path: Path) -> None:
    listed = {"include": [{"system": "http://loinc.org", "concept": [{"code": "1-8"}, {"code": "2-6"}]}]}
    (file := tmp_path / "a.json").write_text(json.dumps({"resourceType": "ValueSet", "compose": listed}))
    assert read_value_set(file) == ["http://loinc.org|1-8", "http://loinc.org|2-6"]
