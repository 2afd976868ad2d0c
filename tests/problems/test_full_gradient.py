"""`full_gradient`: the gradient on all of a site's training samples, in blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.problems.network import EVALUATION_BATCH
from tests.problems.example import WITH_DATA, batch, given_saddle, make, name_of, opened, point

COUNTS = (500, EVALUATION_BATCH + 300)  # positives and negatives: two blocks, of different sizes


@pytest.mark.parametrize("variant", WITH_DATA, ids=name_of)
def test_it_is_the_gradient_on_all_samples_and_counts_as_one(variant: dict[str, Any], monkeypatch: Any) -> None:
    problem = make(**variant, model="mlp", dtype=torch.float32)
    x, y = point(problem, 0)
    data = batch(0, *COUNTS, torch.float32)
    oracle = opened(problem, *data)
    whole = problem.gradient(x, y, data)
    sizes: list[int] = []
    gradient = problem.gradient

    def noting(x: Tensor, y: Tensor | None, part: Any) -> Any:
        sizes.append(len(part[1]))
        return gradient(x, y, part)

    monkeypatch.setattr(problem, "gradient", noting)
    for found, expected in zip(oracle.full_gradient(x, y), whole, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert sizes == [EVALUATION_BATCH, sum(COUNTS) - EVALUATION_BATCH]
    assert (oracle.gradients, oracle.differentiated) == (1, sum(COUNTS))


def test_it_takes_no_batch_from_the_stream_of_batches() -> None:
    problem = make("bce", dtype=torch.float32)
    data, x = batch(0, *COUNTS, torch.float32), problem.initial()["x"]
    quiet, asked = opened(problem, *data), opened(problem, *data)
    asked.full_gradient(x)
    for one, other in zip(quiet.draw() or (), asked.draw() or (), strict=True):
        assert torch.equal(one, other)


def test_dropout_draws_anew_for_each_block_and_the_same_the_next_time() -> None:
    """As for batches: what a module draws follows from the stream and the number of the block."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1))
    problem = make("bce", model=module, dtype=torch.float32)
    data, x = batch(0, *COUNTS, torch.float32), problem.initial()["x"]
    first, again = (opened(problem, *data).full_gradient(x)[0] for _ in range(2))
    assert torch.equal(first, again)
    oracle = opened(problem, *data)
    assert torch.equal(oracle.full_gradient(x)[0], first)
    assert not torch.equal(oracle.full_gradient(x)[0], first), "one gradient later"


def test_a_problem_without_data_has_but_one_gradient() -> None:
    t, b = torch.tensor([0.5, 2.0]).numpy(), torch.ones(2, 3).numpy()
    problem = given_saddle(t, b, 1)
    x, y = point(problem, 0)
    oracle = SiteOracle(problem, None, None, stream(0, 1, 1, 0))
    for one, other in zip(oracle.full_gradient(x, y), problem.gradient(x, y, None), strict=True):
        assert torch.equal(one, other)  # type: ignore[arg-type]
    assert (oracle.gradients, oracle.differentiated) == (1, 0)
