"""The query of a prediction study on OMOP CDM 5.4: one text, for PostgreSQL and SQLite.

The two subtract dates in different ways. A date becomes text, which both write as 2026-03-01, its digits become year,
month and day, and these the number of the day, by whole-number arithmetic alone. Events are joined to concept sets
before that, by whole numbers, so that indexes on concepts and persons are used.

For a FHIR export the same query follows definitions of OMOP's tables by FHIR's resources; concepts and units are texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import date

    from edelweiss.config.extract import ConceptSet, ExtractTable, Feature

DOMAINS = {  # domain: table, its concept and its date
    "condition": ("condition_occurrence", "condition_concept_id", "condition_start_date"),
    "drug": ("drug_exposure", "drug_concept_id", "drug_exposure_start_date"),
    "measurement": ("measurement", "measurement_concept_id", "measurement_date"),
    "procedure": ("procedure_occurrence", "procedure_concept_id", "procedure_date"),
    "visit": ("visit_occurrence", "visit_concept_id", "visit_start_date"),
}
MALE, FEMALE = 8507, 8532  # concepts of gender
TARGET, OUTCOME = "target", "outcome"


def study_query(
    asked: ExtractTable,
    label: str,
    patient: str,
    columns: Sequence[str],
    title: str = "on OMOP CDM 5.4, for PostgreSQL and SQLite",
    tables: str = "",
) -> str:
    """Return the query.

    Parameters
    ----------
    asked
        With target, outcome and features, for one kind of source.
    label, patient
        Names of two columns that it returns: 1 or 0, and the person's id.
    columns
        The features, in the order in which it returns them.
    title
        What it is on, for people.
    tables
        Definitions of OMOP's tables, whose concepts and units are texts; they may use the concept sets. Empty: the
        database has the tables, with concept_ancestor.
    """
    target, outcome = asked.target, asked.outcome
    if target is None or outcome is None:
        raise ValueError("the study asks for no target and outcome")
    items = {f"feature {number}": asked.features[name] for number, name in enumerate(columns)}
    events = {item: one for item, one in items.items() if one.concepts}
    sets: dict[str, ConceptSet | Feature] = {TARGET: target, OUTCOME: outcome, **events}
    first, last = outcome.window
    bounds = f" AND o.day >= {_number(target.since)}" * bool(target.since)
    bounds += f" AND o.day <= {_number(target.until)}" * bool(target.until)
    windows = [f"  SELECT '{OUTCOME}' AS item, {first} AS low, {last} AS high, 0 AS measured"]
    windows += [
        f"  SELECT '{item}', {one.window[0]}, {one.window[1]}, {int(one.value == 'last')}"
        for item, one in events.items()
    ]
    shown = ",\n  ".join(
        f"{_feature(item, one)} AS {_name(name)}" for name, (item, one) in zip(columns, items.items(), strict=True)
    )
    described = "its codes" if tables else "each concept and its descendants"
    none = "'0'" if tables else "0"  # no unit
    return f"""-- A prediction study {title}. It only reads.
WITH
-- Concept sets: {described}.
concepts AS (
{_joined(_concepts(item, one, below=not tables) for item, one in sets.items())}
),
{tables}\
-- The look-back window of each feature, in days from the index date; units, and what a value is multiplied by.
windows AS (
{_joined(windows)}
),
units AS (
{_joined(_units(events, text=bool(tables))) or f"  SELECT '' AS item, {none} AS unit, 1.0 AS factor"}
),
people AS (
  SELECT DISTINCT t.person_id FROM {DOMAINS[target.of][0]} t
  JOIN concepts c ON c.concept_id = t.{DOMAINS[target.of][1]} AND c.item = '{TARGET}'
),
-- What was found of these persons, with its date as text.
found AS (
{_joined(_found(sets, none), "" if tables else " ALL")}
),
-- The date's year, month and day.
dated AS (
  SELECT found.*, CAST(substr(date, 1, 4) AS INTEGER) AS y, CAST(substr(date, 6, 2) AS INTEGER) AS m,
    CAST(substr(date, 9, 2) AS INTEGER) AS d
  FROM found
),
-- The number of the day, in years that begin in March. All divisions are of whole numbers.
events AS (
  SELECT person_id, item, place, moment, value, unit, 10000 * y + 100 * m + d AS ymd,
    365 * (y - (14 - m) / 12) + (y - (14 - m) / 12) / 4 - (y - (14 - m) / 12) / 100 + (y - (14 - m) / 12) / 400
    + (153 * ((m + 9) % 12) + 2) / 5 + d AS day
  FROM dated
),
-- The index date: a person's first event of the target.
starts AS (
  SELECT person_id, min(day) AS day, min(ymd) AS ymd FROM events WHERE item = '{TARGET}' GROUP BY person_id
),
-- Observed before it for long enough; and until when.
observed AS (
  SELECT s.person_id, s.day, s.ymd, max(o.day) AS ends
  FROM starts s
  JOIN events b ON b.person_id = s.person_id AND b.item = 'begin' AND b.day <= s.day - {target.observed}
  JOIN events o ON o.person_id = s.person_id AND o.item = 'end' AND o.place = b.place AND o.day >= s.day
  GROUP BY s.person_id, s.day, s.ymd
),
-- The outcome before the time at risk, and in it.
outcomes AS (
  SELECT o.person_id, max(CASE WHEN e.day < o.day + {first} THEN 1 ELSE 0 END) AS before,
    max(CASE WHEN e.day BETWEEN o.day + {first} AND o.day + {last} THEN 1 ELSE 0 END) AS during
  FROM observed o JOIN events e ON e.person_id = o.person_id AND e.item = '{OUTCOME}'
  GROUP BY o.person_id
),
-- Without the outcome before; with it, or observed to the end of the time at risk.
cohort AS (
  SELECT o.person_id, o.day, o.ymd, coalesce(u.during, 0) AS outcome
  FROM observed o LEFT JOIN outcomes u ON u.person_id = o.person_id
  WHERE coalesce(u.before, 0) = 0 AND (u.during = 1 OR o.ends >= o.day + {last}){bounds}
),
-- Events in their windows; the last one first.
seen AS (
  SELECT e.person_id, e.item, e.value * u.factor AS value,
    row_number() OVER (PARTITION BY e.person_id, e.item ORDER BY e.day DESC, e.moment DESC, e.place DESC) AS number
  FROM events e
  JOIN cohort c ON c.person_id = e.person_id
  JOIN windows w ON w.item = e.item AND e.day BETWEEN c.day + w.low AND c.day + w.high
  LEFT JOIN units u ON u.item = e.item AND u.unit = e.unit
  WHERE e.item <> '{OUTCOME}' AND (w.measured = 0 OR (u.factor IS NOT NULL AND e.value IS NOT NULL))
)
SELECT c.person_id AS {_name(patient)},
  {shown},
  max(c.outcome) AS {_name(label)}
FROM cohort c
JOIN person p ON p.person_id = c.person_id
LEFT JOIN seen s ON s.person_id = c.person_id
GROUP BY c.person_id
ORDER BY c.person_id"""


def _joined(parts: Iterable[str], how: str = "") -> str:
    return f"\n  UNION{how}\n".join(parts)


def _concepts(item: str, one: ConceptSet | Feature, *, below: bool) -> str:
    """Select a concept set, with what is below its concepts."""
    if not below:
        each = ", ".join(f"({_literal(concept)})" for concept in one.concepts)
        return f"  SELECT '{item}' AS item, x.concept_id FROM (VALUES {each}) x (concept_id)"
    listed = ", ".join(map(str, one.concepts))
    each = " UNION ".join(f"SELECT {concept}" for concept in one.concepts)  # one without a row in concept_ancestor
    text = (
        f"  SELECT '{item}' AS item, x.concept_id FROM (\n    SELECT descendant_concept_id AS concept_id FROM "
        f"concept_ancestor WHERE ancestor_concept_id IN ({listed})\n    UNION {each}\n  ) x"
    )
    if one.without:
        gone = ", ".join(map(str, one.without))
        text += (
            f" WHERE x.concept_id NOT IN ({gone}) AND x.concept_id NOT IN (\n    SELECT descendant_concept_id FROM "
            f"concept_ancestor WHERE ancestor_concept_id IN ({gone}))"
        )
    return text


def _units(events: Mapping[str, Feature], *, text: bool) -> list[str]:
    return [
        f"  SELECT '{item}' AS item, {_literal(unit if text else int(unit))} AS unit, "
        f"CAST({factor!r} AS DOUBLE PRECISION) AS factor"
        for item, one in events.items()
        for unit, factor in one.units.items()
    ]


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _found(sets: Mapping[str, ConceptSet | Feature], none: str) -> Iterator[str]:
    """Yield a SELECT for each domain that is needed, and those of observation periods; ``none``: no unit."""
    for domain, (table, concept, day) in DOMAINS.items():
        items = [item for item, one in sets.items() if one.of == domain]
        if not items:
            continue
        listed = ", ".join(f"'{item}'" for item in items)
        value, unit, moment = "CAST(NULL AS DOUBLE PRECISION)", none, "''"
        if domain == "measurement":
            value, unit = "CAST(t.value_as_number AS DOUBLE PRECISION)", f"coalesce(t.unit_concept_id, {none})"
            moment = "coalesce(CAST(t.measurement_datetime AS TEXT), '')"
        yield (
            f"  SELECT t.person_id, c.item, CAST(t.{day} AS TEXT) AS date, t.{table}_id AS place, {moment} AS moment,\n"
            f"    {value} AS value, {unit} AS unit\n  FROM {table} t JOIN concepts c ON c.concept_id = t.{concept} AND "
            f"c.item IN ({listed})\n  WHERE t.person_id IN (SELECT person_id FROM people)"
        )
    for item, day in (("begin", "observation_period_start_date"), ("end", "observation_period_end_date")):
        yield (
            f"  SELECT t.person_id, '{item}', CAST(t.{day} AS TEXT), t.observation_period_id, '',\n"
            f"    CAST(NULL AS DOUBLE PRECISION), {none}\n  FROM observation_period t WHERE t.person_id IN (SELECT "
            "person_id FROM people)"
        )


def _feature(item: str, one: Feature) -> str:
    if one.of == "age":  # a birthday that is not known is taken as July 1st, or the 1st of the month
        birth = "10000 * p.year_of_birth + 100 * coalesce(p.month_of_birth, 7) + coalesce(p.day_of_birth, 1)"
        return f"max((c.ymd - ({birth})) / 10000)"
    if one.of == "sex":
        return f"max(CASE p.gender_concept_id WHEN {MALE} THEN 'male' WHEN {FEMALE} THEN 'female' END)"
    match one.value:
        case "count":
            return f"sum(CASE WHEN s.item = '{item}' THEN 1 ELSE 0 END)"
        case "last":
            return f"max(CASE WHEN s.item = '{item}' AND s.number = 1 THEN s.value END)"
    return f"max(CASE WHEN s.item = '{item}' THEN 1 ELSE 0 END)"


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _number(day: date | None) -> int:
    """Return the number of a day, as the query counts."""
    return day.toordinal() + 306 if day else 0
