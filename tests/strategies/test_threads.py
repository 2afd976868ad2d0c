"""How many threads a process has changes no number that an algorithm adds up itself."""

from __future__ import annotations

import pytest
import torch

from edelweiss.strategies.decentralised import squared_norm


@pytest.mark.parametrize("seed", [0, 2, 3])  # with which PyTorch's own sum has other bits
def test_a_norm_has_the_same_bits_with_any_number_of_threads(seed: int) -> None:
    vector = torch.randn(90_000, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.add(squared_norm(vector))
    assert len(found) == 1
