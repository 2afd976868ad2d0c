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
from edelweiss.datasets import DataConfig, load_site
from tests.client_app.fhir import Writer, write
from tests.client_app.omop import TABLES, names, tables

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
concepts = [201820, "http://snomed.info/sct|73211009", "http://snomed.info/sct|44054006", "http://snomed.info/sct|422034002", "http://snomed.info/sct|46635009"]
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
concepts = [1503297, "http://www.nlm.nih.gov/research/umls/rxnorm|6809", "http://www.nlm.nih.gov/research/umls/rxnorm|860975"]
value = "count"
window = [-730, -1]
[extract.features.glucose]
of = "measurement"
concepts = [3004410, "http://loinc.org|4548-4"]
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
            if "http://loinc.org|4548-4" in codes(part["code"]) and unit in ("mg/dL", "mmol/L"):
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


def approve(site: Site) -> Path:
    """Return a file with the query of the record, which runs by itself."""
    file = site.data.with_name("own.sql")
    file.write_text(json.loads((site.data / "extract.json").read_text())["query"])
    return file
