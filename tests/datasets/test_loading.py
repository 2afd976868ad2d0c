"""How rows are split over sites, held-out sets and the common test set."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from edelweiss.common import PROCESS_CACHE
from edelweiss.datasets import DataConfig, DataError, SiteData, load_site, load_test, loading
from edelweiss.datasets.partition import Rows, dirichlet, partition
from edelweiss.datasets.splits import stratified, thinned
from tests.datasets.helpers import sites_of
from tests.said import has


def rows_of(parts: list[SiteData], *, held_out: bool = True) -> list[int]:
    chosen = [part.train.rows for part in parts] + [part.held_out.rows for part in parts if held_out]
    return torch.cat(chosen).tolist()


def rows(labels: np.ndarray, classes: np.ndarray | None = None, concentration: float = 0.5) -> Rows:
    classes = labels if classes is None else classes
    return Rows(labels, classes, labels, None, concentration)


@pytest.mark.parametrize("dataset", ["breast-cancer", "digits"])
@pytest.mark.parametrize("name", ["iid", "dirichlet", "by-class"])
@pytest.mark.parametrize("sites", [1, 16])
def test_every_row_has_one_place(dataset: str, name: str, sites: int) -> None:
    config = DataConfig(dataset=dataset, partition=name, seed=sites)
    parts = sites_of(config, sites)
    test = load_test(config)
    assert test is not None
    everything = rows_of(parts) + test.rows.tolist()
    assert sorted(everything) == list(range(len(test.inputs)))  # each row once: nothing lost, nothing shared
    assert min(len(part.train) for part in parts) >= 1
    assert parts[0].train.inputs.data_ptr() == parts[-1].held_out.inputs.data_ptr() == test.inputs.data_ptr()
    assert [part.name for part in parts] == [f"site-{site}" for site in range(sites)]


@pytest.mark.parametrize("name", ["iid", "dirichlet", "by-class"])
def test_splits_follow_from_the_seed_alone(name: str) -> None:
    def split(seed: int) -> list[list[int]]:
        return [part.train.rows.tolist() for part in sites_of(config(seed), 4)]

    def config(seed: int) -> DataConfig:
        return DataConfig(dataset="digits", partition=name, seed=seed, thin_share=0.1)

    first = split(1)
    PROCESS_CACHE.forget()
    np.random.seed(5)
    torch.manual_seed(5)
    assert split(1) == first
    assert split(2) != first


def test_the_test_rows_do_not_depend_on_the_partition() -> None:
    tests = [load_test(DataConfig(dataset="digits", partition=name)) for name in ("iid", "by-class")]
    assert tests[0] is not None
    assert tests[1] is not None
    assert torch.equal(tests[0].rows, tests[1].rows)


@pytest.mark.parametrize("which", ["positive", "negative"])
@pytest.mark.parametrize("name", ["iid", "dirichlet", "by-class"])
def test_thinning_hits_the_share_and_spares_the_rest(which: str, name: str) -> None:
    plain = DataConfig(dataset="digits", partition=name)
    thin = DataConfig(dataset="digits", partition=name, thin_class=which, thin_share=0.07)
    before, after = sites_of(plain, 6), sites_of(thin, 6)
    labels = torch.cat([part.train.targets() for part in after])
    share = (labels == (which == "positive")).double().mean().item()
    assert share == pytest.approx(0.07, abs=1 / len(labels))
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old.held_out.rows, new.held_out.rows)
        assert set(new.train.rows.tolist()) <= set(old.train.rows.tolist())
    kept = [(labels != (which == "positive")).sum() for labels in [part.train.targets() for part in after]]
    were = [(labels != (which == "positive")).sum() for labels in [part.train.targets() for part in before]]
    assert kept == were
    plain_test, thin_test = load_test(plain), load_test(thin)
    assert plain_test is not None
    assert thin_test is not None
    assert torch.equal(plain_test.rows, thin_test.rows)


def test_thinning_leaves_a_rarer_class_alone() -> None:
    common = sites_of(DataConfig(dataset="breast-cancer", thin_share=0.9), 2)
    plain = sites_of(DataConfig(dataset="breast-cancer"), 2)
    assert rows_of(common) == rows_of(plain)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=2, max_size=60), st.floats(0.01, 0.99))
def test_thinning_empties_no_site(entries: list[tuple[bool, int]], share: float) -> None:
    rare = np.array([entry[0] for entry in entries])
    owner = np.array([entry[1] for entry in entries])
    stays = thinned(rare, owner, share, np.random.default_rng(0))
    assert stays[~rare].all()
    assert set(owner[stays]) == set(owner)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=80), st.floats(0, 0.99))
def test_a_stratified_split_has_each_class_on_both_sides(strata: list[int], share: float) -> None:
    array = np.array(strata, np.int64)
    chosen = stratified(array, share, np.random.default_rng(0))
    for stratum in set(strata):
        mine = chosen[array == stratum]
        if share == 0 or len(mine) == 1:
            assert not mine.any()
        else:
            assert 1 <= mine.sum() < len(mine)
            assert abs(mine.sum() - share * len(mine)) <= 1


def test_held_out_rows_are_stratified_at_each_site() -> None:
    for part in sites_of(DataConfig(dataset="digits", partition="dirichlet", concentration=0.1), 8):
        train, held_out = part.train.targets(), part.held_out.targets()
        for label in (0, 1):
            mine, theirs = int((train == label).sum()), int((held_out == label).sum())
            if mine + theirs >= 2:
                assert mine >= 1
                assert theirs >= 1


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["iid", "dirichlet", "by-class"]),
    st.integers(1, 12),
    st.integers(0, 99),
    st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
)
def test_every_site_has_two_rows(name: str, sites: int, seed: int, concentration: float) -> None:
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.integers(0, 2, 2 * sites + seed % 7))
    owner = partition(name, rows(labels, concentration=concentration), sites, rng)
    sizes = np.bincount(owner, minlength=sites)
    assert len(sizes) == sites
    assert sizes.min() >= 2
    if name == "iid":
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("count", [300, 250, 30, 16])
@pytest.mark.parametrize("seed", range(5))
def test_parts_that_chance_deals_differ_by_one_row_at_most(count: int, seed: int) -> None:
    labels = np.arange(count) % 2
    owner = partition("iid", rows(labels), 8, np.random.default_rng(seed))
    assert sorted(np.bincount(owner, minlength=8)) == sorted(count // 8 + (site < count % 8) for site in range(8))
    assert owner.tolist() != (np.arange(count) % 8).tolist(), "and chance does deal them"


def test_label_skew_grows_as_the_concentration_falls() -> None:
    labels = np.arange(4000) % 2

    def skew(concentration: float) -> float:
        spreads = []
        for seed in range(10):
            owner = dirichlet(rows(labels, concentration=concentration), 8, np.random.default_rng(seed))
            spreads.append(np.std([labels[owner == site].mean() for site in range(8)]))
        return float(np.mean(spreads))

    skews = [skew(concentration) for concentration in (100.0, 3.0, 0.3, 0.03)]
    assert all(low < high for low, high in pairwise(skews))


def classes_of(part: SiteData, config: DataConfig) -> set[int]:
    """Original classes at a site of the binary run `config`."""
    plain = load_test(DataConfig(dataset=config.dataset, binary=False))
    assert plain is not None
    return set(plain.labels[torch.cat([part.train.rows, part.held_out.rows])].tolist())


@pytest.mark.parametrize("sites", [2, 3, 5])
def test_by_class_deals_disjoint_classes(sites: int) -> None:
    config = DataConfig(dataset="digits", partition="by-class")
    found = [classes_of(part, config) for part in sites_of(config, sites)]
    assert sum(map(len, found)) == len(set.union(*found)) == 10
    for classes in found:
        assert classes & {0, 1, 2, 3, 4}
        assert classes & {5, 6, 7, 8, 9}


def test_by_class_without_sides_goes_up_to_one_class_a_site() -> None:
    config = DataConfig(dataset="digits", partition="by-class", binary=False)
    parts = sites_of(config, 10)
    assert [len(classes_of(part, config)) for part in parts] == [1] * 10
    assert {part.classes for part in parts} == {10}


def test_by_class_splits_a_class_between_the_sites_that_share_it() -> None:
    config = DataConfig(dataset="digits", partition="by-class")
    parts = sites_of(config, 16)
    found = [classes_of(part, config) for part in parts]
    assert all(len(classes) == 2 for classes in found)
    labels = load_test(DataConfig(dataset="digits", binary=False)).labels  # type: ignore[union-attr]
    for original in range(10):
        sizes = [
            int((labels[torch.cat([part.train.rows, part.held_out.rows])] == original).sum())
            for part, classes in zip(parts, found, strict=True)
            if original in classes
        ]
        assert len(sizes) >= 3
        assert max(sizes) - min(sizes) <= 1


def test_by_class_on_two_classes_gives_every_site_both() -> None:
    config = DataConfig(dataset="breast-cancer", partition="by-class")
    assert all(classes_of(part, config) == {0, 1} for part in sites_of(config, 7))


def test_malignant_is_positive() -> None:
    part = load_site(DataConfig(dataset="breast-cancer", test_share=0, holdout_share=0), 0, 1)
    assert (len(part.train), int(part.train.targets().sum())) == (569, 212)  # 212 malignant, says the source
    assert load_test(DataConfig(dataset="breast-cancer", test_share=0)) is None
    # Malignant tumours are larger.
    radius = part.train.inputs[:, part.features.index("mean radius")]
    assert radius[part.train.labels == 1].mean() > radius[part.train.labels == 0].mean()


def test_class_lists() -> None:
    def labels(**lists: tuple[int, ...]) -> dict[int, int]:
        config = DataConfig(dataset="digits", test_share=0, **lists)  # type: ignore[arg-type]
        part = load_site(config, 0, 1)
        original = load_test(DataConfig(dataset="digits", binary=False)).labels  # type: ignore[union-attr]
        used = rows_of([part])
        return dict(zip(original[used].tolist(), part.train.labels[used].tolist(), strict=True))

    assert labels() == {c: int(c >= 5) for c in range(10)}
    assert labels(positive_classes=(3,), negative_classes=(1, 7)) == {3: 1, 1: 0, 7: 0}
    assert labels(positive_classes=(0,)) == {c: int(c == 0) for c in range(10)}
    assert labels(negative_classes=(0,)) == {c: int(c != 0) for c in range(10)}


def test_images_stay_bytes_and_nothing_is_missing() -> None:
    part = load_site(DataConfig(dataset="digits"), 0, 2)
    assert part.train.inputs.dtype == torch.uint8
    assert (part.train.shape, part.missing, part.classes) == ((1, 8, 8), 0, 2)
    assert part.train.batch(torch.arange(3))[0].dtype == torch.float32


def test_many_sites_are_partitioned_once() -> None:
    before = loading._splits.cache_info().misses
    sites_of(DataConfig(dataset="digits", partition="dirichlet", seed=77), 256)
    assert loading._splits.cache_info().misses == before + 1


@pytest.mark.parametrize(
    ("fields", "site", "sites", "key", "value"),
    [
        ({}, 0, 500, "sites", 500),
        ({}, 3, 3, "site", 3),
        ({"positive_classes": (4,)}, 0, 2, "positive-classes", [4]),
        ({"positive_classes": (0, 1)}, 0, 2, "positive-classes", (0, 1)),
    ],
)
def test_a_split_that_cannot_be(fields: dict[str, object], site: int, sites: int, key: str, value: object) -> None:
    with pytest.raises(DataError, check=has(key=key, value=value)):
        load_site(DataConfig(dataset="breast-cancer", **fields), site, sites)  # type: ignore[arg-type]
