"""What of FHIR R4 is read, and how its resources become OMOP's tables, in DuckDB's SQL.

A resource's codings are texts such as ``http://loinc.org|2160-0``. They stand where OMOP has concept ids; the query of
a study is otherwise the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edelweiss.client_app.extract.omop import FEMALE, MALE, study_query

if TYPE_CHECKING:
    from edelweiss.config.extract import ExtractTable

Shape = Any  # of an element: str, float, bool, a dict of elements by name, or a list with the shape of its items

CODING: Shape = {"system": str, "code": str}
CONCEPT: Shape = {"coding": [CODING]}
REFERENCE: Shape = {"reference": str}
PERIOD: Shape = {"start": str, "end": str}
QUANTITY: Shape = {"value": float, "comparator": str, "unit": str, "system": str, "code": str}
VALUE: Shape = {"code": CONCEPT, "valueQuantity": QUANTITY, "valueInteger": float, "dataAbsentReason": CONCEPT}
UCUM = "http://unitsofmeasure.org"


@dataclass(frozen=True)
class Resource:
    """A type of resource: the elements that are read, and SQL for what tables are made of."""

    elements: Mapping[str, Shape]
    valid: str = "true"  # whether one counts
    written: str = "NULL"  # its date, as it is written
    codings: str = "[]"  # list of its codings
    rows: str = ""  # what replaces the table in FROM
    end: str = "NULL"  # of a period, as it is written


def _not(element: str, *values: str) -> str:
    return f"coalesce({element}, '') NOT IN ({', '.join(map(repr, values))})"


RESOURCES = {
    "Patient": Resource(
        {"birthDate": str, "gender": str, "link": [{"other": REFERENCE, "type": str}]}, written="birthDate"
    ),
    "Encounter": Resource(
        {"status": str, "class": CODING, "type": [CONCEPT], "subject": REFERENCE, "period": PERIOD},
        _not("status", "planned", "cancelled", "entered-in-error"),
        "period['start']",
        'list_concat(["class"], flatten(list_transform(type, lambda t: t.coding)))',
        end="period['end']",
    ),
    "Condition": Resource(
        {
            "verificationStatus": CONCEPT,
            "code": CONCEPT,
            "subject": REFERENCE,
            "onsetDateTime": str,
            "onsetPeriod": PERIOD,
            "recordedDate": str,
        },
        "NOT coalesce(list_has_any(list_transform(verificationStatus.coding, lambda c: c.code), "
        "['refuted', 'entered-in-error']), false)",
        "coalesce(onsetDateTime, onsetPeriod['start'], recordedDate)",
        "code.coding",
    ),
    "Observation": Resource(
        {
            "status": str,
            **VALUE,
            "subject": REFERENCE,
            "effectiveDateTime": str,
            "effectiveInstant": str,
            "effectivePeriod": PERIOD,
            "issued": str,
            "component": [VALUE],
        },
        _not("status", "registered", "cancelled", "entered-in-error"),
        "coalesce(effectiveDateTime, effectiveInstant, effectivePeriod['start'], issued)",
        "list_concat(code.coding, flatten(list_transform(component, lambda p: p.code.coding)))",
    ),
    "Medication": Resource({"code": CONCEPT}, codings="code.coding"),
    "MedicationRequest": Resource(
        {
            "status": str,
            "intent": str,
            "doNotPerform": bool,
            "subject": REFERENCE,
            "authoredOn": str,
            "medicationCodeableConcept": CONCEPT,
            "medicationReference": REFERENCE,
            "contained": [{"id": str, "code": CONCEPT}],
        },
        f"{_not('status', 'draft', 'cancelled', 'entered-in-error')} AND {_not('intent', 'proposal', 'option')} "
        "AND NOT coalesce(doNotPerform, false)",
        "authoredOn",
        "codings",
        "(SELECT r.*, coalesce(r.medicationCodeableConcept.coding, m.code.coding, list_filter(r.contained, lambda c: "
        "'#' || c.id = r.medicationReference.reference)[1].code.coding) AS codings FROM MedicationRequest r LEFT JOIN "
        "Medication m ON m.id = {medication})",
    ),
    "Procedure": Resource(
        {
            "status": str,
            "code": CONCEPT,
            "subject": REFERENCE,
            "performedDateTime": str,
            "performedPeriod": PERIOD,
        },
        _not("status", "preparation", "not-done", "entered-in-error"),
        "coalesce(performedDateTime, performedPeriod['start'])",
        "code.coding",
    ),
}
TYPES = {  # by domain
    "condition": "Condition",
    "drug": "MedicationRequest",
    "measurement": "Observation",
    "procedure": "Procedure",
    "visit": "Encounter",
}


def identifier(reference: str, kind: str) -> str:
    """Return SQL for the id that a reference names: Patient/1, https://server/Patient/1/_history/2 or urn:uuid:1."""
    pattern = rf"^(?:(?:.*/)?{kind}/|urn:uuid:|urn:oid:)([A-Za-z0-9.-]+)(?:/_history/.*)?$"
    return f"nullif(regexp_extract({reference}, '{pattern}', 1), '')"


PERSON = identifier("subject.reference", "Patient")


def rows_of(kind: str) -> str:
    """Return what a type's resources are selected from."""
    return RESOURCES[kind].rows.format(medication=identifier("r.medicationReference.reference", "Medication")) or kind


def day(written: str) -> str:
    """Return SQL for a date. An unknown month is taken as July, an unknown day as the first; a zone is not used."""
    return (
        f"try_cast(CASE length({written}) WHEN 4 THEN {written} || '-07-01' WHEN 7 THEN {written} || '-01' "
        f"ELSE left({written}, 10) END AS DATE)"
    )


def names(codings: str) -> str:
    """Return SQL for the texts of a list of codings."""
    return f"list_transform({codings}, lambda c: c.system || '|' || c.code)"


def fhir_query(asked: ExtractTable, label: str, patient: str, columns: Sequence[str]) -> str:
    """Return the query of a study, on the tables of a FHIR export; arguments as of `study_query`."""
    domains = dict.fromkeys(one.of for _, one in asked.sets())
    title = "on a FHIR R4 bulk export, for DuckDB"
    return study_query(asked, label, patient, columns, title, _definitions(domains))


def _definitions(domains: Iterable[str]) -> str:
    """Return the definitions of OMOP's tables."""
    birth, visit = f"{day('birthDate')} IS NOT NULL", RESOURCES["Encounter"]
    parts = [
        f"""-- OMOP's tables, from resources; a person's id is that of the Patient.
person AS (
  SELECT id AS person_id,
    CASE gender WHEN 'male' THEN {MALE} WHEN 'female' THEN {FEMALE} ELSE 0 END AS gender_concept_id,
    CASE WHEN {birth} THEN CAST(left(birthDate, 4) AS INTEGER) END AS year_of_birth,
    CASE WHEN {birth} THEN try_cast(birthDate[6:7] AS INTEGER) END AS month_of_birth,
    CASE WHEN {birth} THEN try_cast(birthDate[9:10] AS INTEGER) END AS day_of_birth
  FROM Patient
),
-- Observed from the first Encounter to the last.
observation_period AS (
  SELECT person_id AS observation_period_id, person_id, min(begin) AS observation_period_start_date,
    max(greatest(begin, coalesce(stop, begin))) AS observation_period_end_date
  FROM (
    SELECT {PERSON} AS person_id,
      {day(visit.written)} AS begin,
      {day(visit.end)} AS stop
    FROM Encounter WHERE {visit.valid}
  )
  WHERE begin IS NOT NULL GROUP BY person_id
),"""
    ]
    parts += [_measurement() if domain == "measurement" else _events(domain) for domain in domains]
    return "\n".join(parts) + "\n"


def _events(domain: str) -> str:
    from edelweiss.client_app.extract.omop import DOMAINS

    table, concept, date = DOMAINS[domain]
    one = RESOURCES[TYPES[domain]]
    return f"""{table} AS (
  SELECT id AS {table}_id, person_id, {concept}, {date}
  FROM (
    SELECT id, {PERSON} AS person_id, {day(one.written)} AS {date},
      unnest({names(one.codings)}) AS {concept}
    FROM {rows_of(TYPES[domain])} WHERE {one.valid}
  )
  WHERE {date} IS NOT NULL AND {concept} IN (SELECT concept_id FROM concepts)
),"""


def _measurement() -> str:
    one = RESOURCES["Observation"]
    whole = ", ".join(f"{name} := {name}" for name in VALUE)
    return f"""-- An Observation and its components are measurements, unless a reason says why there is none.
measurement AS (
  SELECT id || '/' || n AS measurement_id, person_id, measurement_concept_id, measurement_date, measurement_datetime,
    coalesce(part.valueQuantity.value, part.valueInteger) AS value_as_number,
    CASE WHEN part.valueQuantity.code IS NOT NULL AND coalesce(part.valueQuantity.system, '{UCUM}') = '{UCUM}'
      THEN part.valueQuantity.code ELSE part.valueQuantity.unit END AS unit_concept_id
  FROM (
    SELECT id, person_id, measurement_date, measurement_datetime, n, part,
      unnest({names("part.code.coding")}) AS measurement_concept_id
    FROM (
      SELECT id, {PERSON} AS person_id, {day("written")} AS measurement_date,
        CASE WHEN contains(written, 'T') THEN try_cast(written AS TIMESTAMPTZ) END AS measurement_datetime,
        unnest(parts) AS part, unnest(range(len(parts))) AS n
      FROM (
        SELECT id, subject, {one.written} AS written,
          list_concat([struct_pack({whole})], component) AS parts
        FROM Observation WHERE {one.valid}
      )
    )
    WHERE part.dataAbsentReason IS NULL
  )
  WHERE measurement_date IS NOT NULL AND measurement_concept_id IN (SELECT concept_id FROM concepts)
),"""
