"""What the batches of each sampler hold."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from edelweiss.datasets import SAMPLERS, DataError, Sampler, make_sampler
from tests.said import has


def sampler_of(name: str, labels: Tensor, size: int, positives: int = 1, seed: int = 0) -> Sampler:
    return make_sampler(name, labels, size, positives, torch.Generator().manual_seed(seed))


def labels_of(positives: int, negatives: int) -> Tensor:
    return torch.tensor([1] * positives + [0] * negatives, dtype=torch.int64)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_uniform_visits_every_row_once_per_epoch(rows: int, size: int, seed: int) -> None:
    sampler = sampler_of("uniform", labels_of(0, rows), size, seed=seed)
    batches = [sampler.draw() for _ in range(3 * rows)]
    assert all(batch.unique().numel() == len(batch) == min(size, rows) for batch in batches)
    drawn = torch.cat(batches)
    for start in range(0, len(drawn) - rows + 1, rows):
        assert drawn[start : start + rows].unique().numel() == rows


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(0, 40), st.integers(1, 12), st.data())
def test_fixed_positives(positives: int, negatives: int, size: int, data: st.DataObject) -> None:
    quota = data.draw(st.integers(1, size))
    labels = labels_of(positives, negatives)
    sampler = sampler_of("fixed-positives", labels, size, quota)
    drawn = []
    for _ in range(2 * positives):
        batch = sampler.draw()
        mine = batch[labels[batch] == 1]
        drawn.append(mine)
        assert len(mine) == min(quota, positives)
        assert len(batch) - len(mine) == min(size - quota, negatives)
        assert batch.unique().numel() == len(batch)
    assert torch.cat(drawn)[:positives].unique().numel() == positives


@pytest.mark.parametrize(
    ("positives", "negatives", "quota", "rare"),
    [
        (1, 99, 4, True),
        (24, 76, 4, True),
        (25, 75, 4, False),
        (0, 100, 4, False),
        (99, 1, 4, False),
        (1, 99, 16, False),
    ],
)
def test_auto_fixes_positives_where_a_uniform_batch_has_fewer(
    positives: int, negatives: int, quota: int, rare: bool
) -> None:
    """And leaves others where they are, also where no batch has room for more than them."""
    labels = labels_of(positives, negatives)
    auto, wanted = (sampler_of(n, labels, 16, quota) for n in ("auto", "fixed-positives" if rare else "uniform"))
    assert all(torch.equal(auto.draw(), wanted.draw()) for _ in range(10))
    assert (auto.weights(labels) is None) == (not rare)


@pytest.mark.parametrize("ahead", [False, True])
def test_fixed_positives_without_any_are_uniform(ahead: bool) -> None:
    labels = labels_of(0, 30)
    fixed, uniform = (sampler_of(name, labels, 8, 2) for name in ("fixed-positives", "uniform"))
    for _ in range(6):
        drawn, wanted = (sampler.draw() for sampler in (fixed, uniform))
        assert torch.equal(drawn, wanted)
        weights = fixed.weights(labels[drawn])
        assert weights is not None
        assert torch.equal(weights, torch.ones(8, dtype=torch.float64))
        if ahead:
            previewed, others = (sampler.ahead(8) for sampler in (fixed, uniform))
            assert np.array_equal(previewed, others)
    assert fixed.full(8) == 8


def test_a_draw_of_another_size_keeps_the_share() -> None:
    labels = labels_of(50, 500)
    sampler = sampler_of("fixed-positives", labels, 20, 5)
    for size, quota in ((40, 10), (8, 2), (2, 1), (1, 1)):
        batch = sampler.draw(size)
        assert (len(batch), int(labels[batch].sum())) == (size, quota)
    assert len(sampler_of("uniform", labels, 20).draw(7)) == 7
    uniform = sampler_of("uniform", labels_of(0, 10), 4)
    uniform.draw()
    assert sorted(uniform.draw(100).tolist()) == list(range(10))  # in the middle of an epoch, too


def test_epochs_and_seeds_differ_and_equal_seeds_do_not() -> None:
    labels = labels_of(0, 1000)
    first, same, other = (sampler_of("uniform", labels, 1000 - 1, seed=seed) for seed in (1, 1, 2))
    a, b = first.draw(), first.draw()
    assert not torch.equal(a, b)
    assert torch.equal(a, same.draw())
    assert not torch.equal(a, other.draw())


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_global_stream_is_left_alone(name: str) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    sampler_of(name, labels_of(5, 50), 8).draw()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "labels", "size", "positives", "key", "value"),
    [
        ("uniforn", labels_of(1, 1), 1, 1, "sampler", "uniforn"),
        ("uniform", labels_of(0, 0), 1, 1, "", None),
        ("uniform", labels_of(1, 1), 0, 1, "batch-size", 0),
        ("fixed-positives", labels_of(3, 9), 4, 5, "positives-per-batch", 5),
        ("fixed-positives", labels_of(3, 9), 4, 0, "positives-per-batch", 0),
    ],
)
def test_what_cannot_be_drawn(name: str, labels: Tensor, size: int, positives: int, key: str, value: object) -> None:
    with pytest.raises(DataError, check=has(key=key, value=value)) as caught:
        sampler_of(name, labels, size, positives)
    assert caught.value.public == str(caught.value)
