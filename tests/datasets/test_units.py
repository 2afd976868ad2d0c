"""A feature in another unit at one site is named, with that site; sites that are alike are left in peace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edelweiss.datasets.units import Moments, OutlierCounter, far_sites, rounded

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
DRAWS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(50, 10, shape),
    "exponential": lambda rng, shape: rng.exponential(1, shape),
    "log-normal": lambda rng, shape: rng.lognormal(0, 2, shape),
    "heavy": lambda rng, shape: rng.standard_t(2, shape),
    "rare": lambda rng, shape: (rng.random(shape) < 0.01).astype(float),
    "rare, of 3": lambda rng, shape: (rng.random(shape) < 0.01) * 3.0,
    "rare amounts": lambda rng, shape: (rng.random(shape) < 0.02) * rng.lognormal(5, 1, shape),
    "counts": lambda rng, shape: rng.poisson(0.02, shape).astype(float),
    "two values": lambda rng, shape: 2000.0 + rng.integers(0, 2, shape),
    "with a code": lambda rng, shape: np.where(rng.random(shape) < 0.002, 999, rng.normal(50, 10, shape)),
}
UNITS: dict[str, tuple[Draw, Callable[[np.ndarray], np.ndarray]]] = {
    "glucose": (lambda rng, shape: rng.lognormal(4.6, 0.3, shape), lambda x: x / 18.02),
    "glucose, one in mg/dl": (lambda rng, shape: rng.lognormal(1.7, 0.3, shape), lambda x: x * 18.02),
    "creatinine": (lambda rng, shape: rng.lognormal(0, 0.5, shape), lambda x: x * 88.4),
    "temperature": (lambda rng, shape: rng.normal(37, 0.7, shape), lambda x: x * 1.8 + 32),
    "height": (lambda rng, shape: rng.normal(170, 10, shape), lambda x: x / 100),
    "age": (lambda rng, shape: rng.normal(60, 15, shape), lambda x: x * 1000),
    "log scale": (lambda rng, shape: rng.lognormal(4.6, 0.3, shape), np.log),
    "standardised": (lambda rng, shape: rng.normal(60, 15, shape), lambda x: (x - 60) / 15),
    "zero as missing": (lambda rng, shape: rng.normal(240, 50, shape), lambda x: x * 0),
}


def sums(values: np.ndarray) -> Moments:
    return Moments(np.full(values.shape[1], float(len(values))), values.sum(0), (values**2).sum(0))


@pytest.mark.parametrize("name", DRAWS)
def test_sites_that_are_alike_raise_at_most_one_false_alarm_in_a_hundred_runs(name: str) -> None:
    """Ten features of any shape, few or many sites, of 5 to 1,000 patients; 100 runs have 1 at most in the mean."""
    rng = np.random.default_rng(0)
    alarms = 0
    for run in range(100):
        sizes = np.exp(rng.uniform(np.log(5), np.log(1000 if run % 3 else 60), (2, 4, 8)[run % 3])).astype(int)
        alarms += bool(far_sites([sums(DRAWS[name](rng, (size, 10))) for size in sizes]))
    assert alarms <= 4, "P = 0.004, were it 1 in the mean"


@pytest.mark.parametrize("sites", [2, 3, 8])
@pytest.mark.parametrize("size", [40, 400])
@pytest.mark.parametrize("name", UNITS)
def test_another_unit_is_seen_and_where(name: str, size: int, sites: int) -> None:
    rng = np.random.default_rng(1)
    draw, change = UNITS[name]
    tables = [np.column_stack([rng.normal(0, 1, (size, 5)), draw(rng, (size, 1))]) for _ in range(sites)]
    assert not far_sites([sums(table) for table in tables])
    tables[1][:, 5] = change(tables[1][:, 5])
    assert far_sites([sums(table) for table in tables]) == {5: [0, 1] if sites == 2 else [1]}


def test_two_sites_of_many_may_be_wrong() -> None:
    rng = np.random.default_rng(0)
    glucose = [rng.lognormal(4.6, 0.3, (200, 1)) for _ in range(6)]
    glucose[2], glucose[5] = glucose[2] / 18.02, glucose[5] / 18.02
    assert far_sites([sums(table) for table in glucose]) == {0: [2, 5]}


def test_what_differs_as_hospitals_do_is_no_unit() -> None:
    """Older and sicker by a spread, twice as varied, a flag that one has never and one nearly always."""
    rng = np.random.default_rng(0)
    tables = [rng.normal([60, 120, 1], [10, 20, 0.2], (2000, 3)) for _ in range(4)]
    tables[0][:, 0] += 15
    tables[1][:, 1] = rng.normal(140, 40, 2000)
    tables[2][:, 2] *= 1.6
    flags = [rng.random((2000, 1)) < share for share in (0.0, 0.97, 0.3, 0.001)]
    assert not far_sites([sums(np.column_stack(both)) for both in zip(tables, flags, strict=True)])


def test_a_feature_that_a_site_lacks_or_few_have_says_nothing() -> None:
    rng = np.random.default_rng(0)
    tables = [rng.normal(100, 10, (50, 2)) for _ in range(3)]
    none, few = (Moments(np.full(2, n), np.full(2, 5.5 * n), np.full(2, 31.0 * n)) for n in (0.0, 9.0))
    assert not far_sites([*map(sums, tables), none])
    assert not far_sites([*map(sums, tables), few])


# ---------------------------------------------------------------------- a finished model's new patients


@pytest.mark.parametrize("name", ["normal", "exponential", "log-normal", "rare", "rare, of 3", "counts"])
@pytest.mark.parametrize("size", [20, 3000])
def test_patients_such_as_in_training_are_not_named(name: str, size: int) -> None:
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(40):
        training = DRAWS[name](rng, (3000, 1))
        watched = OutlierCounter(training.mean(0), np.maximum(training.std(0), 1e-9))
        watched.add(DRAWS[name](rng, (size, 1)))
        alarms += bool(watched.found())
    assert alarms <= 2


@pytest.mark.parametrize("size", [1, 30])
def test_new_patients_in_another_unit_are_named(size: int) -> None:
    rng = np.random.default_rng(0)
    watched = OutlierCounter(np.array([60.0, 100, 0.01]), np.array([15.0, 30, np.sqrt(0.01 * 0.99)]))
    rows = np.column_stack([rng.normal(60, 15, size) * 1000, rng.normal(5.6, 1.7, size), np.ones(size)])
    rows[0, 2] = np.nan
    for part in np.array_split(rows, 3):
        watched.add(part)
    found = watched.found()
    assert set(found) == ({0} if size == 1 else {0, 1}), "that one patient's glucose is low may be so"
    many, of, typical = found[0]
    assert (many, of) == (size, size)
    assert typical == pytest.approx(60000, rel=0.3)


def test_values_are_written_without_an_exponent_as_far_as_people_read_numbers() -> None:
    for value in (0.00123, 0.5, 12.3, 121.7, 98_765.4, 250_000.0):
        assert "e" not in rounded(value, 2)
        assert float(rounded(value, 2)) == pytest.approx(value, rel=0.05)
