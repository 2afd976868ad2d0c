"""Synthetic data to the specification of OMOP CDM 5.4: its keys, its constraints, the columns that it requires."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pandas as pd

FIRST, DAYS = date(2008, 1, 1), 365 * 14  # observed in these days
ANCESTORS = {  # concept: its ancestors; levels are not used
    201826: (201820, 201826),
    443731: (201820, 201826, 443731),
    201254: (201820, 201254),
    201820: (201820,),
    321588: (321588,),
    316139: (321588, 316139),
    444094: (321588, 316139, 444094),
    316866: (316866,),
    1503297: (1503297,),
    40164929: (1503297, 40164929),
    3004410: (3004410,),
    3028437: (3028437,),
    4336464: (4336464,),
    9201: (9201,),
    9203: (9203,),
}
TABLES = {  # name: columns with types and constraints; keys to other tables
    "concept": "concept_id INTEGER PRIMARY KEY, concept_name VARCHAR(255) NOT NULL, domain_id VARCHAR(20) NOT NULL",
    "concept_ancestor": "ancestor_concept_id INTEGER NOT NULL REFERENCES concept, "
    "descendant_concept_id INTEGER NOT NULL REFERENCES concept, "
    "min_levels_of_separation INTEGER NOT NULL, max_levels_of_separation INTEGER NOT NULL",
    "person": "person_id BIGINT PRIMARY KEY, gender_concept_id INTEGER NOT NULL, year_of_birth INTEGER NOT NULL, "
    "month_of_birth INTEGER, day_of_birth INTEGER, "
    "race_concept_id INTEGER NOT NULL, ethnicity_concept_id INTEGER NOT NULL",
    "observation_period": "observation_period_id BIGINT PRIMARY KEY, person_id BIGINT NOT NULL REFERENCES person, "
    "observation_period_start_date DATE NOT NULL, observation_period_end_date DATE NOT NULL, "
    "period_type_concept_id INTEGER NOT NULL, CHECK (observation_period_start_date <= observation_period_end_date)",
    "visit_occurrence": "visit_occurrence_id BIGINT PRIMARY KEY, person_id BIGINT NOT NULL REFERENCES person, "
    "visit_concept_id INTEGER NOT NULL REFERENCES concept, visit_start_date DATE NOT NULL, "
    "visit_end_date DATE NOT NULL, "
    "visit_type_concept_id INTEGER NOT NULL, CHECK (visit_start_date <= visit_end_date)",
    "condition_occurrence": "condition_occurrence_id BIGINT PRIMARY KEY, person_id BIGINT NOT NULL REFERENCES person, "
    "condition_concept_id INTEGER NOT NULL REFERENCES concept, condition_start_date DATE NOT NULL, "
    "condition_type_concept_id INTEGER NOT NULL",
    "drug_exposure": "drug_exposure_id BIGINT PRIMARY KEY, person_id BIGINT NOT NULL REFERENCES person, "
    "drug_concept_id INTEGER NOT NULL REFERENCES concept, drug_exposure_start_date DATE NOT NULL, "
    "drug_exposure_end_date DATE NOT NULL, drug_type_concept_id INTEGER NOT NULL",
    "procedure_occurrence": "procedure_occurrence_id BIGINT PRIMARY KEY, person_id BIGINT NOT NULL REFERENCES person, "
    "procedure_concept_id INTEGER NOT NULL REFERENCES concept, procedure_date DATE NOT NULL, "
    "procedure_type_concept_id INTEGER NOT NULL",
    "measurement": "measurement_id BIGINT PRIMARY KEY, person_id BIGINT NOT NULL REFERENCES person, "
    "measurement_concept_id INTEGER NOT NULL REFERENCES concept, measurement_date DATE NOT NULL, "
    "measurement_datetime TIMESTAMP, measurement_type_concept_id INTEGER NOT NULL, value_as_number NUMERIC, "
    "unit_concept_id INTEGER",
}


def on(day: int) -> str:
    return str(FIRST + timedelta(days=int(day)))


def tables(persons: int, seed: int) -> dict[str, list[tuple[object, ...]]]:
    """Draw the rows of all tables; persons have ids of 62 bits."""
    rng = np.random.default_rng(seed)
    ids = (2**61 + 7 * rng.permutation(persons)).tolist()
    found: dict[str, list[tuple[object, ...]]] = {name: [] for name in TABLES}
    found["concept"] = [(concept, f"concept {concept}", "any") for concept in ANCESTORS]
    found["concept_ancestor"] = [
        (above, concept, int(above != concept), 3) for concept, all_above in ANCESTORS.items() for above in all_above
    ]
    for person in ids:
        month = int(rng.integers(1, 13)) if rng.random() < 0.9 else None
        day = int(rng.integers(1, 29)) if month and rng.random() < 0.8 else None
        gender = int(rng.choice([8507, 8532, 0], p=[0.48, 0.48, 0.04]))
        found["person"].append((person, gender, int(rng.integers(1920, 1990)), month, day, 0, 0))
        start = int(rng.integers(0, 1500))
        end = int(rng.integers(start, DAYS))
        spans = [(start, end)]
        if end - start > 1500 and rng.random() < 0.3:  # a gap
            spans = [(start, start + 700), (start + 900, end)]
        for begin, stop in spans:
            number = len(found["observation_period"]) + 1
            found["observation_period"].append((number, person, on(begin), on(stop), 32817))

        def days(mean: float, start: int = start, end: int = end) -> list[int]:
            return sorted(rng.integers(start, end + 1, rng.poisson(mean)).tolist())

        for name, mean, concepts in (
            ("condition_occurrence", 3.0, [201826, 443731, 201254, 321588, 444094, 316866]),
            ("procedure_occurrence", 0.7, [4336464]),
            ("visit_occurrence", 4.0, [9201, 9203]),
            ("drug_exposure", 2.0, [1503297, 40164929]),
        ):
            for at in days(mean):
                row = [len(found[name]) + 1, person, int(rng.choice(concepts)), on(at)]
                if name in ("visit_occurrence", "drug_exposure"):
                    row.append(on(at + 3))
                found[name].append((*row, 32817))
        for at in days(5.0):
            for _ in range(1 + int(rng.random() < 0.3)):  # two on a day
                number = len(found["measurement"]) + 1
                moment = f"{on(at)} {int(rng.integers(24)):02}:00:00" if rng.random() < 0.5 else None
                value = None if rng.random() < 0.1 else round(float(rng.normal(8, 2)), 2)
                unit = [8753, 8840, 8554, None][int(rng.integers(4))]
                found["measurement"].append(
                    (number, person, int(rng.choice([3004410, 3028437])), on(at), moment, 32817, value, unit)
                )
    return found


def frames(rows: dict[str, list[tuple[object, ...]]]) -> dict[str, pd.DataFrame]:
    """Return the tables for pandas."""
    return {name: pd.DataFrame(each, columns=names(name)) for name, each in rows.items()}


def names(table: str) -> list[str]:
    columns = TABLES[table].split(", CHECK")[0].split(", ")
    return [column.split()[0] for column in columns]
