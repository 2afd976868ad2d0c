"""The batches of many clients at once are those that each draws alone, whatever is asked for, in whatever order."""

from __future__ import annotations

from itertools import zip_longest

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.client_app.stacked_oracle import StackedOracle
from edelweiss.datasets import SAMPLERS, Samples, make_sampler
from tests.problems.example import FEATURES, make

ROWS = (20, 17, 19, 20)  # the same number of batches in an epoch
BATCH = 4
DRAWN = torch.Generator().manual_seed(4)
TABLE, LABELS = torch.randn(sum(ROWS), FEATURES, generator=DRAWN), torch.randint(0, 2, (sum(ROWS),), generator=DRAWN)
PROBLEM = make("bce")
EPOCH = 0


def oracles(sampler: str) -> list[SiteOracle]:
    return [
        SiteOracle(
            PROBLEM,
            Samples(TABLE, LABELS, rows),
            make_sampler(sampler, LABELS[rows], BATCH, 2, random := stream(0, site, 1, 0)),
            random,
            BATCH,
        )
        for site, rows in enumerate(torch.arange(sum(ROWS)).split(ROWS))
    ]


@pytest.mark.parametrize("sampler", SAMPLERS)
@settings(max_examples=60, deadline=None)
@given(asked=st.lists(st.sampled_from([BATCH, BATCH, BATCH, 1, 3, 7, 40, EPOCH]), max_size=20))
def test_each_draws_what_it_draws_alone(sampler: str, asked: list[int]) -> None:
    alone, together = oracles(sampler), StackedOracle(PROBLEM, oracles(sampler))
    for size in asked:
        mine = zip_longest(*([one.draw(size)] if size else list(one.epoch()) for one in alone))
        for each, batch in zip_longest(mine, [together.draw(size)] if size else together.epoch()):
            assert batch is not None
            for client, (inputs, labels, *weights) in enumerate(each):
                size = len(labels)
                assert torch.equal(batch[0][client, :size], inputs)
                assert torch.equal(batch[1][client, :size], labels)
                for own in weights:  # shorter batches are filled up, and count as much as others
                    torch.testing.assert_close(batch[2][client, :size], own * (batch[2].shape[1] / size))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_so_does_each_that_draws_within_an_epoch(sampler: str) -> None:
    alone, together = oracles(sampler), StackedOracle(PROBLEM, oracles(sampler))
    for each, batch in zip(zip(*(one.epoch() for one in alone), strict=True), together.epoch(), strict=True):
        drawn = together.draw()
        for client, one in enumerate(alone):
            other = one.draw()
            for own, rows in ((each[client], batch), (other, drawn)):
                assert own is not None
                assert rows is not None
                assert torch.equal(rows[0][client, : len(own[1])], own[0])


def test_positions_are_dealt_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    each, drawn = oracles("uniform"), []
    for oracle in each:
        assert oracle.plain is not None
        sampler = oracle.plain[1]
        monkeypatch.setattr(sampler, "ahead", lambda size, ahead=sampler.ahead: drawn.append(size) or ahead(size))
    together = StackedOracle(PROBLEM, each)
    for _ in range(8):
        together.draw()
    assert len(drawn) == 3 * len(ROWS)  # the shortest epoch, of 17, has four batches: at 1, 5 and, in others, at 6
