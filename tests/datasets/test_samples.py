"""Batches, moments and standardisation."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from edelweiss.common import PROCESS_CACHE
from edelweiss.datasets import DataConfig, DataError, Samples, load_site, standardisation
from edelweiss.datasets.samples import moments
from edelweiss.datasets.vision import import_torchvision


def add(parts: list[tuple[list[float], list[float], list[float]]]) -> tuple[list[float], ...]:
    return tuple(np.sum([part[i] for part in parts], axis=0).tolist() for i in range(3))


def table_of(values: np.ndarray) -> Samples:
    inputs = torch.from_numpy(values.astype(np.float32))
    return Samples(inputs, torch.zeros(len(inputs), dtype=torch.int64), torch.arange(len(inputs)))


def test_a_batch_holds_the_rows_asked_for() -> None:
    inputs = torch.arange(20, dtype=torch.float32).reshape(10, 2)
    labels = torch.arange(10)
    samples = Samples(inputs, labels, torch.tensor([7, 3, 5]))
    batch, targets = samples.batch(torch.tensor([2, 0]))
    assert targets.tolist() == [5, 7]
    assert torch.equal(batch, inputs[[5, 7]])
    assert samples.targets().tolist() == [7, 3, 5]
    assert (len(samples), samples.shape) == (3, (2,))


def test_a_batch_never_writes_into_the_shared_tensors() -> None:
    inputs = torch.tensor([[1.0, float("nan")], [3.0, 4.0]])
    before = inputs.clone()
    samples = Samples(inputs, torch.tensor([0, 1]), torch.arange(2))
    samples.standardised(torch.tensor([2.0, 1.0]), torch.tensor([4.0, 1.0])).batch(torch.arange(2))
    assert torch.equal(inputs.nan_to_num(-1), before.nan_to_num(-1))


def test_a_missing_value_becomes_the_training_mean() -> None:
    values = np.array([[1.0, 5.0], [np.nan, 7.0], [3.0, np.nan]])
    samples = table_of(values)
    shift, scale = standardisation(*moments(samples))
    assert shift.tolist() == [2.0, 6.0]
    batch, _ = samples.standardised(shift, scale).batch(torch.arange(3))
    assert batch[1, 0] == 0
    assert batch[2, 1] == 0
    assert batch[0, 0] == -1


@pytest.mark.parametrize("dataset", ["breast-cancer", "digits"])
def test_moments_add_up_over_sites_and_standardise_the_union(dataset: str) -> None:
    config = DataConfig(dataset=dataset)
    sites = [load_site(config, site, 5).train for site in range(5)]
    union = Samples(sites[0].inputs, sites[0].labels, torch.cat([site.rows for site in sites]))
    summed = add([moments(site) for site in sites])
    for ours, whole in zip(summed, moments(union), strict=True):
        assert ours == pytest.approx(whole, rel=1e-12)
    shift, scale = standardisation(*summed)
    batch, _ = union.standardised(shift, scale).batch(torch.arange(len(union)))
    values = batch.double().transpose(0, 1).reshape(union.shape[0], -1)
    assert values.mean(1).abs().max() < 1e-3
    assert (values.var(1, correction=0) - 1).abs().max() < 1e-3


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 10**6))
def test_moments_of_images_are_those_of_their_floats(count: int, channels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, channels, 3, 5), dtype=torch.uint8, generator=generator)
    rows = torch.randperm(count, generator=generator)[: count // 2 + 1]
    sums = moments(Samples(images, torch.zeros(count, dtype=torch.int64), rows))
    floats = images[rows].double()
    assert sums[0] == [len(rows) * 15.0] * channels
    assert sums[1] == floats.sum((0, 2, 3)).tolist()
    assert sums[2] == floats.square().sum((0, 2, 3)).tolist()


def test_features_without_variance_or_values_are_left_alone() -> None:
    values = np.array([[0.1, np.nan, 1e9], [0.1, np.nan, 1e9 + 4096], [0.1, np.nan, 1e9 - 4096]])
    samples = table_of(values)
    shift, scale = standardisation(*moments(samples))
    assert scale[:2].tolist() == [1, 1]
    assert shift[1] == 0
    assert scale[2] > 1000
    batch, _ = samples.standardised(shift, scale).batch(torch.arange(3))
    assert batch[:, :2].abs().max() < 1e-6


def test_an_empty_set_has_zero_moments() -> None:
    empty = Samples(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert moments(empty) == ([0] * 3, [0] * 3, [0] * 3)
    assert len(empty.batch(torch.zeros(0, dtype=torch.int64))[1]) == 0


@pytest.fixture(autouse=True)
def nothing_moved_before() -> Iterator[None]:
    PROCESS_CACHE.forget()
    yield
    PROCESS_CACHE.forget()


def test_sites_share_their_tensors_on_another_device_too() -> None:
    images = torch.zeros(9, 3, 2, 2, dtype=torch.uint8)
    one, other = (Samples(images, torch.arange(9), torch.tensor(rows)) for rows in ([4, 2], [1, 5, 6]))
    one, other = one.standardised(torch.ones(3), torch.ones(3)).to("meta"), other.to("meta")
    assert one.inputs is other.inputs
    assert (one.inputs.shape[0], len(one), len(other), one.shape) == (9, 2, 3, (3, 2, 2))
    assert one.shift is not None
    assert one.shift.is_meta
    assert Samples(images, torch.arange(9), torch.arange(9)).to("cpu").inputs.data_ptr() == images.data_ptr()


def test_images_that_a_device_has_no_room_for_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.zeros(9, 3, 2, 2, dtype=torch.uint8)
    samples = Samples(images, torch.arange(9), torch.tensor([4, 2])).standardised(torch.ones(3), torch.ones(3))
    # Of the memory that is free, a half: for all of them, for those of this set, for none.
    for free, there in ((2 * 9 * 12, 9), (2 * 9 * 12 - 1, 2), (2 * 2 * 12, 2), (2 * 2 * 12 - 1, 0)):
        PROCESS_CACHE.forget()
        monkeypatch.setattr("edelweiss.datasets.samples._free", lambda _, free=free: free)
        moved = samples.to("meta")
        assert moved.inputs.is_meta == moved.rows.is_meta == bool(there)
        assert len(moved.inputs) == (there or 9)
        assert moved.targets().is_meta
        assert moved.shift is not None
        assert moved.shift.is_meta


@pytest.mark.parametrize("room", [True, False])
def test_moving_keeps_batches(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    if not room:
        monkeypatch.setattr("edelweiss.datasets.samples._free", lambda _: 0)
    images = torch.randint(0, 256, (9, 3, 4, 4), dtype=torch.uint8)
    samples = Samples(images, torch.arange(9), torch.tensor([4, 2, 8])).standardised(torch.rand(3), torch.rand(3) + 1)
    moved = samples.to("cuda")
    assert moved.inputs.is_cuda == room
    index = torch.tensor([2, 0])
    for ours, theirs in zip(moved.batch(index), samples.batch(index), strict=True):
        assert torch.allclose(ours.cpu(), theirs)
    assert moments(moved) == moments(samples)


def test_errors_keep_both_texts_between_processes() -> None:
    error = pickle.loads(pickle.dumps(DataError("row 3 is 'x'", "1 row is bad")))
    assert (str(error), error.public) == ("row 3 is 'x'", "1 row is bad")
    assert "x" not in DataError("x").public.split()


def test_torchvision_is_imported_beside_any_torch() -> None:
    """Nothing else imports it: it is here, or was in an earlier test, that operators may be missing."""
    torchvision = import_torchvision()
    assert torchvision is import_torchvision()
    assert torchvision.transforms
    assert torchvision.models
