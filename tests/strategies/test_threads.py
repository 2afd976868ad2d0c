"""How many threads a process has changes no number that an algorithm adds up itself."""

from __future__ import annotations

import torch

from strategies.decentralised import squared_norm


def test_a_norm_has_the_same_bits_with_any_number_of_threads() -> None:
    vector = torch.randn(300_001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.add(squared_norm(vector))
    assert len(found) == 1
