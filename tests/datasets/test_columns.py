"""Every kind of doubt about a column is raised by a planted one, and by no honest measurement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn import datasets as bundled

from edelweiss.datasets.site.columns import (
    CODES,
    CONSTANT,
    DATES,
    DAYS,
    EMPTY,
    ICD,
    LABEL,
    LEAK,
    MONTHS,
    NUMBERED,
    REPEATED,
    SERIAL,
    kind_of,
)

N = 600
Draw = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def put(rng: np.random.Generator, values: np.ndarray, code: float, share: float = 0.1) -> np.ndarray:
    """Write a code in place of some values."""
    return np.where(rng.random(len(values)) < share, code, values)


def ages(rng: np.random.Generator) -> np.ndarray:
    return np.clip(np.rint(rng.normal(65, 14, N)), 18, 98)


def days(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rng.integers(2005, 2020, N), rng.integers(1, 13, N), rng.integers(1, 29, N)


def visits(rng: np.random.Generator, names: np.ndarray) -> np.ndarray:
    """Rows of patients with one to five visits each."""
    rows: np.ndarray = rng.permutation(np.repeat(names, rng.integers(1, 6, len(names)))[:N])
    return np.resize(rows, N)


PLANTED: dict[str, tuple[tuple[str, str], Draw]] = {
    "nothing": (EMPTY, lambda rng, y: np.full(N, np.nan)),
    "a constant": (CONSTANT, lambda rng, y: np.full(N, 3.5)),
    "a copy of the label": (LABEL, lambda rng, y: 2 - y),
    "what defines it": (LEAK, lambda rng, y: np.where(y, rng.uniform(700, 2499, N), rng.uniform(2500, 5000, N))),
    "with a few errors": (LEAK, lambda rng, y: np.where(np.arange(N) < 2, 0, y) * 50 + rng.normal(0, 5, N)),
    "categories": (LEAK, lambda rng, y: np.where(y, rng.choice([1, 4], N), rng.choice([0, 2, 3], N))),
    "known of the positive only": (LEAK, lambda rng, y: np.where(y, rng.normal(5, 1, N), np.nan)),
    "one value, of the positive only": (LEAK, lambda rng, y: np.where(y, 1, np.nan)),
    "YYYYMMDD": (DATES, lambda rng, y: days(rng)[0] * 10000 + days(rng)[1] * 100 + days(rng)[2]),
    "YYYYMM": (MONTHS, lambda rng, y: days(rng)[0] * 100 + days(rng)[1]),
    "DDMMYYYY": (DAYS, lambda rng, y: days(rng)[2] * 1000000 + days(rng)[1] * 10000 + days(rng)[0]),
    "MMDDYYYY": (DAYS, lambda rng, y: days(rng)[1] * 1000000 + days(rng)[2] * 10000 + days(rng)[0]),
    "a spreadsheet's dates": (SERIAL, lambda rng, y: rng.integers(36526, 45000, N)),
    "a number each": (NUMBERED, lambda rng, y: rng.permutation(N) + 4711),
    "scattered numbers": (NUMBERED, lambda rng, y: rng.choice(10**7, N, replace=False)),
    "scattered numbers that repeat": (REPEATED, lambda rng, y: visits(rng, rng.choice(10**7, N, replace=False))),
    "counted numbers that repeat": (REPEATED, lambda rng, y: np.sort(visits(rng, np.arange(1, N)))),
    "ICD-9": (ICD, lambda rng, y: rng.choice([401.9, 250, 428, 427.31, 414.01, 272.4, 584.9, 486, 599, 38.9, 996], N)),
    "-9": (CODES, lambda rng, y: put(rng, rng.integers(0, 5, N), -9)),
    "-1": (CODES, lambda rng, y: put(rng, rng.integers(0, 40, N), -1)),
    "-999": (CODES, lambda rng, y: put(rng, ages(rng), -999)),
    "9": (CODES, lambda rng, y: put(rng, rng.integers(1, 5, N), 9)),
    "99 beside a few values": (CODES, lambda rng, y: put(rng, rng.integers(0, 12, N), 99)),
    "99 beside ages": (CODES, lambda rng, y: put(rng, ages(rng), 99)),
    "98 and 99": (CODES, lambda rng, y: put(rng, put(rng, rng.integers(0, 18, N), 98), 99)),
    "999": (CODES, lambda rng, y: put(rng, ages(rng), 999, 0.02)),
    "9999": (CODES, lambda rng, y: put(rng, np.rint(rng.lognormal(5, 0.6, N)), 9999)),
}

HONEST: dict[str, Draw] = {
    "normal": lambda rng, y: rng.normal(y, 1),
    "strong": lambda rng, y: rng.normal(2.6 * y, 1),  # AUROC 0.97
    "skewed": lambda rng, y: rng.lognormal(0, 1.5, N),
    "whole and skewed": lambda rng, y: np.rint(rng.lognormal(4, 1, N)),
    "ages": lambda rng, y: ages(rng),
    "sorted ages": lambda rng, y: np.sort(ages(rng)),
    "a rare flag": lambda rng, y: rng.random(N) < 0.02,
    "-1, 0, 1": lambda rng, y: rng.integers(-1, 2, N),
    "around zero": lambda rng, y: np.rint(rng.normal(0, 4, N)),
    "a scale of ten": lambda rng, y: rng.integers(0, 11, N),
    "a scale to nine": lambda rng, y: rng.integers(1, 10, N),
    "per cent": lambda rng, y: rng.integers(0, 100, N),
    "platelets": lambda rng, y: np.rint(rng.normal(250, 60, N)),
    "platelets per microlitre": lambda rng, y: np.rint(rng.normal(250, 60, N)) * 1000,
    "grams": lambda rng, y: np.rint(rng.normal(3000, 700, N)),
    "salaries": lambda rng, y: np.rint(rng.normal(400, 60, N)) * 100,
    "years": lambda rng, y: rng.integers(1930, 2010, N),
    "counts": lambda rng, y: rng.poisson(2, N),
    "with missing": lambda rng, y: put(rng, rng.normal(5, 1, N), np.nan, 0.3),
    "blood pressure": lambda rng, y: np.rint(rng.normal(135, 20, N)),
    "doses": lambda rng, y: rng.choice([50, 100, 250, 500, 1000], N),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_seen(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = (rng.random(N) < 0.3).astype(np.int64)
    expected, draw = PLANTED[name]
    assert kind_of("a", draw(rng, labels).astype(np.float64), [labels]) == expected


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", HONEST)
def test_a_measurement_raises_no_doubt(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = (rng.random(N) < 0.3).astype(np.int64)
    assert kind_of("a", HONEST[name](rng, labels).astype(np.float64), [labels]) is None


@pytest.mark.parametrize("name", ["id", "PatientID", "subject_id", "MRN"])
def test_a_name_is_evidence(name: str) -> None:
    """Small numbers that repeat in no order look like any measurement."""
    values = np.random.default_rng(0).integers(1, 100, N).astype(np.float64)
    assert kind_of(name, values, []) == REPEATED
    assert kind_of("width", values, []) is None, "in which there is an id, as letters"


@pytest.mark.parametrize("positives", [1, 3, 9])
def test_few_patients_may_be_told_apart_by_chance(positives: int) -> None:
    """A strong feature has the few positives on top, and many columns have a chance."""
    labels = (np.arange(100) < positives).astype(np.int64)
    values = np.where(labels, 2.6, 0) + np.random.default_rng(0).uniform(0, 1, 100)
    assert kind_of("a", values, [labels]) is None
    labels[:10] = 1
    assert kind_of("a", np.where(labels, 2.6, 0) + values / 10, [labels]) == LEAK


def test_each_of_several_labels_may_be_told() -> None:
    rng = np.random.default_rng(0)
    labels = [(rng.random(N) < share).astype(np.int64) for share in (0.3, 0.5)]
    unknown = np.where(rng.random(N) < 0.2, -1, labels[1])
    assert kind_of("a", rng.normal(10 * labels[1], 1), [labels[0], unknown]) == LEAK
    assert kind_of("a", rng.normal(labels[1], 1), [labels[0], unknown]) is None


@pytest.mark.parametrize("classes", [3, 10])
def test_classes_that_one_column_tells(classes: int) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, N)
    assert kind_of("a", labels * 10 + rng.uniform(0, 9, N), [labels]) == LEAK
    assert kind_of("a", labels * 10 + rng.uniform(0, 19, N), [labels]) is None


def test_a_copy_of_many_classes() -> None:
    labels = np.random.default_rng(0).integers(0, 62, N)
    assert kind_of("a", 100.5 - labels, [labels]) == LABEL


@pytest.mark.parametrize("name", ["breast_cancer", "wine", "diabetes", "linnerud", "digits"])
def test_tables_of_others_raise_no_doubts(name: str) -> None:
    """Constant pixels apart; breast cancer's best column has an AUROC of 0.975."""
    table = getattr(bundled, f"load_{name}")()
    labels = table.target if table.target.ndim == 1 else table.target[:, 0]
    labels = labels.astype(np.int64) if len(np.unique(labels)) <= 10 else np.full(len(labels), -1)
    found = {kind_of(str(place), column.astype(np.float64), [labels]) for place, column in enumerate(table.data.T)}
    assert found - {CONSTANT} == {None}


@pytest.mark.parametrize("values", [[], [np.nan], [1.0], [np.nan, 1.0], [0.0, 1.0], [-9.0, 9.0], [1e18, 2e18, -3.4e38]])
def test_tables_of_a_row_or_two(values: list[float]) -> None:
    for label in (np.zeros(len(values), np.int64), np.arange(len(values)) % 2, np.full(len(values), -1)):
        assert kind_of("a", np.array(values), [label]) in (EMPTY, CONSTANT, LABEL, None)
