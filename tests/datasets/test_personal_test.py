"""A site's own test split: the common test set, dealt in the proportions of the training rows."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from edelweiss.datasets import DataConfig, DataError, load_site, load_test
from edelweiss.datasets.splits import deal_proportionally
from tests.datasets.helpers import sites_of, write_hearts
from tests.said import has


def mix(counts: torch.Tensor) -> torch.Tensor:
    return counts / counts.sum()


def personal(dataset: str = "digits", **fields: object) -> DataConfig:
    keys = {"dataset": dataset, "binary": False, "partition": "dirichlet", "personal_test": True, **fields}
    return DataConfig(**keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "by-class"])
@pytest.mark.parametrize("sites", [1, 32])
def test_every_test_row_has_one_site_and_no_training_row_is_held_out(partition: str, sites: int) -> None:
    config = personal(partition=partition, seed=sites)
    parts, test = sites_of(config, sites), load_test(config)
    assert test is not None
    assert sorted(torch.cat([part.held_out.rows for part in parts]).tolist()) == test.rows.tolist()
    train = torch.cat([part.train.rows for part in parts]).tolist()
    assert sorted(train + test.rows.tolist()) == list(range(1797))
    assert min(len(part.held_out) for part in parts) >= 1


@pytest.mark.parametrize("concentration", [0.1, 0.3, 0.5])
def test_a_site_is_tested_on_its_own_class_mix(concentration: float) -> None:
    config = personal(concentration=concentration, test_share=0.5, seed=3)
    parts = sites_of(config, 4)
    totals = sum(part.train.targets().bincount(minlength=10) for part in parts)
    test = load_test(config)
    assert test is not None
    there = test.targets().bincount(minlength=10)
    for part in parts:
        train, held_out = (s.targets().bincount(minlength=10) for s in (part.train, part.held_out))
        assert (held_out - train / totals * there).abs().max() <= 1 + 1e-9, "the same proportion of each class"
        assert held_out[train == 0].sum() == 0
        assert (mix(held_out) - mix(train)).abs().sum() < 0.1
    mixes = torch.stack([mix(part.held_out.targets().bincount(minlength=10)) for part in parts])
    assert (mixes - mixes.mean(0)).abs().sum(1).min() > 0.3, "and that of each site is another"


def test_the_smaller_the_concentration_the_fewer_classes_has_a_site() -> None:
    def classes(concentration: float) -> float:
        parts = sites_of(personal(concentration=concentration), 8)
        shares = [mix(part.held_out.targets().bincount(minlength=10).double()) for part in parts]
        return float(np.mean([float(share.square().sum()) ** -1 for share in shares]))

    assert classes(0.1) < classes(0.5) < classes(100.0)


@pytest.mark.slow
def test_mnist_sites_share_its_official_test_set(data_root: str) -> None:
    config = personal("mnist", data_root=data_root, concentration=0.3, download=False)
    parts = sites_of(config, 32)
    rows = torch.cat([part.held_out.rows for part in parts])
    assert sorted(rows.tolist()) == list(range(60_000, 70_000))
    assert sum(len(part.train) for part in parts) == 60_000
    for part in (part for part in parts if len(part.held_out) > 100):
        train, held_out = (mix(s.targets().bincount(minlength=10)) for s in (part.train, part.held_out))
        assert (train - held_out).abs().sum() < 0.1


def test_without_a_personal_test_nothing_has_changed() -> None:
    plain, own = DataConfig(dataset="digits", partition="dirichlet"), personal(binary=True)
    tests = [load_test(config) for config in (plain, own)]
    assert tests[0] is not None
    assert tests[1] is not None
    assert torch.equal(tests[0].rows, tests[1].rows)
    for ours, theirs in zip(sites_of(own, 4), sites_of(plain, 4), strict=True):
        assert sorted([*theirs.train.rows.tolist(), *theirs.held_out.rows.tolist()]) == ours.train.rows.tolist()


def test_a_hospital_is_tested_on_its_own_patients(tmp_path: object) -> None:
    write_hearts(tmp_path, header=False)  # type: ignore[arg-type]
    config = personal("heart-disease", data_root=str(tmp_path), partition="sites")
    for number, part in enumerate(sites_of(config, 4)):
        assert len(part.held_out) >= 2
        assert set(part.held_out.inputs[part.held_out.rows, 1].tolist()) == {number}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(0, 3), max_size=40), st.integers(0, 99))
def test_test_rows_are_dealt_by_rounded_proportions(sites: int, test: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    strata = np.concatenate([np.arange(4), rng.integers(0, 4, 30)])
    owner = np.concatenate([np.arange(sites), rng.integers(0, sites, len(strata) - sites)])
    dealt = deal_proportionally(strata, owner, np.array(test, np.int64), sites, rng)
    assert len(dealt) == len(test)
    for stratum in range(4):
        mine = np.bincount(dealt[np.array(test, np.int64) == stratum], minlength=sites)
        train = np.bincount(owner[strata == stratum], minlength=sites)
        assert not mine[train == 0].any(), "nobody is tested on what it does not train on"


def test_a_site_too_small_for_a_test_row_gets_one_of_its_most_frequent_class() -> None:
    strata = np.repeat([0, 1], [1000, 1001])
    owner = np.where(np.arange(2001) < 2000, 0, 1)  # site 1 has one row, of class 1
    dealt = deal_proportionally(strata, owner, np.repeat([0, 1], 10), 2, np.random.default_rng(0))
    assert np.bincount(dealt).tolist() == [19, 1]
    assert np.flatnonzero(dealt == 1)[0] >= 10
    assert deal_proportionally(strata, owner, np.zeros(1, np.int64), 2, np.random.default_rng(0)).tolist() == [0], (
        "or none"
    )


def test_a_site_without_a_hold_out_needs_a_single_row() -> None:
    """1,797 digits, a quarter of them for testing, are enough for 1,000 sites."""
    bare = {"dataset": "digits", "binary": False, "partition": "iid"}
    parts = sites_of(DataConfig(**bare, holdout_share=0.0), 1000)  # type: ignore[arg-type]
    assert {len(part.train) for part in parts} == {1, 2}
    assert sum(len(part.held_out) for part in parts) == 0
    with pytest.raises(DataError, check=has(2000, key="sites", value=1000)):
        load_site(DataConfig(**bare), 0, 1000)  # type: ignore[arg-type]
    with pytest.raises(DataError, check=has(1347, key="sites", value=1400)):
        load_site(personal(partition="iid"), 0, 1400)


def test_without_a_common_test_set_it_says_so() -> None:
    with pytest.raises(DataError, check=has("digits", "test-share", key="personal-test")):
        load_site(personal(test_share=0.0), 0, 2)


def test_test_rows_of_classes_that_nobody_trains_on_are_refused() -> None:
    with pytest.raises(DataError, check=has("omniglot", key="personal-test")):
        deal_proportionally(np.array([0, 0]), np.array([0, 1]), np.array([1]), 2, np.random.default_rng(0))
