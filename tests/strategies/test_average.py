"""mean_k."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from edelweiss.federation import Reply, Site, average

DTYPES = [torch.float32, torch.float64]


def replies(vectors: list[torch.Tensor], weights: list[float]) -> list[Reply]:
    return [
        Reply(Site(k, f"site-{k}", k + 1, weight), {"x": vector, "twice": 2 * vector})
        for k, (vector, weight) in enumerate(zip(vectors, weights, strict=True))
    ]


def drawn(count: int, size: int, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[float]]:
    random = np.random.default_rng(count)
    vectors = [torch.from_numpy(random.normal(0, 10.0**k, size)).to(dtype) for k in range(count)]
    return vectors, random.uniform(0.1, 500, count).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_is_numpys_weighted_mean(count: int, dtype: torch.dtype) -> None:
    vectors, weights = drawn(count, 50, dtype)
    mean = average(replies(vectors, weights))
    expected = np.average(torch.stack(vectors).double().numpy(), axis=0, weights=weights)
    assert mean["x"].dtype == dtype
    scale = 10.0**count * (1e-6 if dtype == torch.float32 else 1e-14)
    np.testing.assert_allclose(mean["x"].numpy(), expected, rtol=0, atol=scale)
    np.testing.assert_allclose(mean["twice"].numpy(), 2 * expected, rtol=0, atol=2 * scale)


def test_equal_order_gives_equal_bits() -> None:
    vectors, weights = drawn(7, 1000, torch.float32)
    first, again = (average(replies(vectors, weights))["x"] for _ in range(2))
    assert torch.equal(first, again)
    backwards = average(reversed(replies(vectors, weights)))["x"]
    torch.testing.assert_close(backwards, first, rtol=0, atol=1.0)  # of numbers up to a million
    assert not torch.equal(backwards, first), "another order rounds differently: that is why it is fixed"


def test_leaves_the_replies_alone_and_shares_no_memory_with_them() -> None:
    vectors, _ = drawn(3, 5, torch.float64)
    before = [vector.clone() for vector in vectors]
    for count in (1, 3):
        mean = average(replies(vectors[:count], [1.0] * count))
        mean["x"].fill_(77.0)
        assert all(torch.equal(now, then) for now, then in zip(vectors, before, strict=True))


def test_holds_one_reply_at_a_time() -> None:
    """An answer is folded in and dropped before the next one exists."""
    alive: list[weakref.ref[torch.Tensor]] = []

    def arriving() -> Iterator[Reply]:
        for k in range(6):
            # Of those before, the caller's loop variable may still hold the last.
            assert sum(reference() is not None for reference in alive) <= 1
            vector = torch.full((1000,), float(k))
            alive.append(weakref.ref(vector))
            yield Reply(Site(k, str(k), k + 1), {"x": vector})
            del vector

    assert torch.equal(average(arriving())["x"], torch.full((1000,), 2.5))


def test_of_nothing_is_nothing() -> None:
    assert average([]) == {}
