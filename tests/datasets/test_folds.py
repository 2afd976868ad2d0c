"""Cross-validation within each site: every row is held out exactly once, whatever the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import DataConfig, DataError, SiteData, load_site, load_test
from edelweiss.datasets.splits import assign_folds
from edelweiss.server_app import simulate
from tests.said import has

SOURCES: list[dict[str, Any]] = [
    {"dataset": "digits", "binary": False, "partition": "dirichlet", "concentration": 0.2},
    {"dataset": "digits", "partition": "by-class"},
    {"dataset": "breast-cancer", "partition": "iid"},
]
HEART = {"dataset": "heart-disease", "partition": "sites"}
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def folds_of(fields: dict[str, Any], sites: int, folds: int = 5) -> list[list[SiteData]]:
    """Return the sites of each fold."""
    return [
        [load_site(DataConfig(**fields, folds=folds, fold=fold), site, sites) for site in range(sites)]
        for fold in range(folds)
    ]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 8), st.integers(0, 99))
def test_rows_are_dealt_evenly_over_all_and_within_each_stratum(strata: list[int], folds: int, seed: int) -> None:
    array = np.array(strata, np.int64)
    fold = assign_folds(array, folds, np.random.default_rng(seed))
    for rows in (fold, *(fold[array == stratum] for stratum in set(strata))):
        sizes = np.bincount(rows, minlength=folds)
        assert len(sizes) == folds
        assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(assign_folds(array, folds, np.random.default_rng(seed)), fold)


def test_chance_decides_who_is_in_which_fold() -> None:
    strata = np.repeat([0, 1], 50)
    one, other = (assign_folds(strata, 5, np.random.default_rng(seed)) for seed in (0, 1))
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, np.arange(100) % 5)


@pytest.mark.parametrize("fields", SOURCES, ids=lambda fields: "-".join(map(str, fields.values())))
@pytest.mark.parametrize("folds", [2, 5])
def test_the_held_out_rows_of_all_folds_are_all_rows_once(fields: dict[str, Any], folds: int) -> None:
    everything: list[int] = []
    for site, parts in enumerate(zip(*folds_of(fields, 4, folds), strict=True)):
        held_out = [part.held_out.rows.tolist() for part in parts]
        mine = sorted(row for rows in held_out for row in rows)
        everything += mine
        for part, rows in zip(parts, held_out, strict=True):
            assert sorted(part.train.rows.tolist() + rows) == mine, "what is not held out is trained on, at this site"
            assert part.name == f"site-{site}"
        sizes = [len(rows) for rows in held_out]
        assert max(sizes) - min(sizes) <= 1
    assert sorted(everything) == list(range(len(parts[0].train.inputs)))  # no row was set aside for a common test
    assert load_test(DataConfig(**fields, folds=folds)) is None


def test_folds_follow_from_the_seed_and_do_not_care_for_the_shares() -> None:
    def rows(**fields: Any) -> list[int]:
        return load_site(DataConfig(dataset="digits", folds=3, fold=1, **fields), 1, 4).held_out.rows.tolist()

    assert rows(seed=1) == rows(seed=1, holdout_share=0.0, test_share=0.5)
    assert rows(seed=1) != rows(seed=2)


@pytest.mark.slow
def test_the_official_test_set_stays_what_it_is(data_root: str) -> None:
    fields: dict[str, Any] = {"dataset": "mnist", "data_root": data_root, "binary": False}
    test = load_test(DataConfig(**fields, folds=5))
    assert test is not None
    assert len(test) == 10_000
    parts = [fold[0] for fold in folds_of(fields, 8)]
    held_out = torch.cat([part.held_out.rows for part in parts])
    assert len(held_out) == len(held_out.unique()) == 60_000 / 8
    assert not torch.isin(held_out, test.rows).any()


def test_thinning_touches_the_training_rows_only() -> None:
    plain, thin = ([fold[0] for fold in folds_of(SOURCES[1] | {"thin_share": share}, 2)] for share in (0.0, 0.05))
    for one, other in zip(plain, thin, strict=True):
        assert torch.equal(one.held_out.rows, other.held_out.rows)
        assert set(other.train.rows.tolist()) < set(one.train.rows.tolist())


def test_a_hospitals_table(table: Callable[..., DataConfig]) -> None:
    text = "age,label\n" + "".join(f"{i},{int(i < 3)}\n" for i in range(11))
    seen = []
    for fold in range(4):
        part = load_site(table(text, folds=4, fold=fold), 0, 1)
        assert len(part.train) + len(part.held_out) == 11
        assert int(part.train.targets().sum()) >= 2
        seen += part.held_out.rows.tolist()
    assert sorted(seen) == list(range(11))


def test_more_folds_than_rows_leave_some_without_held_out_rows(table: Callable[..., DataConfig]) -> None:
    sizes = [len(load_site(table("a,label\n1,0\n2,1\n", folds=3, fold=fold), 0, 1).held_out) for fold in range(3)]
    assert sorted(sizes) == [0, 1, 1]


def test_more_folds_than_any_site_has_rows_are_refused() -> None:
    with pytest.raises(DataError, check=has(key="folds", value=10**6)) as no:
        load_site(DataConfig(dataset="breast-cancer", folds=10**6), 0, 2)
    most = no.value.allowed
    assert str(most) in str(no.value)
    assert len(load_site(DataConfig(dataset="breast-cancer", folds=most), 0, 2).train)


def test_the_only_row_of_a_site_cannot_be_held_out(table: Callable[..., DataConfig]) -> None:
    with pytest.raises(DataError, check=has(key="fold", value=0)):
        load_site(table("a,label\n3,yes\n", folds=2), 0, 1)
    assert len(load_site(table("a,label\n3,yes\n", folds=2, fold=1), 0, 1).train) == 1


# ---------------------------------------------------------------------- the four hospitals


def test_each_hospital_holds_out_each_patient_once_and_each_class_in_each_fold(data_root: str) -> None:
    folds = folds_of(HEART | {"data_root": data_root}, 4)
    rows = torch.cat([part.held_out.rows for fold in folds for part in fold])
    assert sorted(rows.tolist()) == list(range(920))
    for name, parts in zip(HOSPITALS, zip(*folds, strict=True), strict=True):
        assert {part.name for part in parts} == {name}
        negatives = [int((part.held_out.targets() == 0).sum()) for part in parts]
        if name == "switzerland":
            assert sorted(negatives) == [1, 1, 2, 2, 2]
        assert max(negatives) - min(negatives) <= 1
        for part in parts:
            assert set(part.held_out.targets().tolist()) == set(part.train.targets().tolist()) == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["codasca", "alone"])
def test_five_runs_evaluate_every_patient_of_every_hospital_once(
    data_root: str, tmp_path: Path, algorithm: str
) -> None:
    job: dict[str, Any] = {
        "algorithm": algorithm,
        "dataset": "heart-disease",
        "data-root": data_root,
        "partition": "sites",
        "thin-share": 0.0,
        "sites": 4,
        "rounds": 4,
        "workers": 1,
        "device": "cpu",
        "runs-dir": str(tmp_path),
        "evaluate-every": 0,
        "folds": 5,
    }
    records = [simulate(job | {"fold": fold}).metrics[-1] for fold in range(5)]
    for name, patients in zip(HOSPITALS, (303, 294, 123, 200), strict=True):
        assert sum(record["sites"][name]["n"] for record in records) == patients
        assert np.isfinite([record["sites"][name]["auroc"] for record in records]).all()
    assert all("central" not in record for record in records)
    assert np.mean([record["auroc"] for record in records]) > 0.7  # after four rounds


# ---------------------------------------------------------------------- settings that make no sense


@pytest.mark.parametrize(("folds", "fold"), [(1, 0), (5, 5), (0, 1), (-1, 0), (2, -1)])
def test_settings_that_make_no_sense(folds: int, fold: int) -> None:
    with pytest.raises(ConfigError, check=has(fold, keys=["fold" if fold < 0 else "folds"])):
        RunConfig.parse({"folds": folds, "fold": fold})


def test_the_last_fold_is_one_below_their_number() -> None:
    data = RunConfig.parse({"folds": 5, "fold": 4}).data()
    assert (data.folds, data.fold) == (5, 4)
