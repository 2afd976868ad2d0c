"""CODASCA's bookkeeping by itself: the server's sum is that of the answers that counted, or it starts anew."""

from __future__ import annotations

from collections.abc import Collection

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from edelweiss.federation import Reply, RoundContext, Site, Stages
from edelweiss.problems import Arrays
from edelweiss.strategies.variate_versions import COUNTED, ROUND, SINCE, VariateVersions, origin, still_valid

K = 4
ROUNDS = 12
ONE_STAGE = Stages(local_steps=1)
TWO_STAGES = Stages(local_steps=1, iterations=6)  # rounds 1-6 and 7-12


def number(value: int) -> torch.Tensor:
    return torch.tensor([value])


def turn_of(server_round: int, stages: Stages = ONE_STAGE) -> RoundContext:
    context = stages.context(server_round, ROUNDS)
    return RoundContext(**(vars(context) | {"sites": K}))


class Bookkeeping:
    """Sites with a number each, and a server that keeps the sum by adding the changes that it is told.

    Attributes
    ----------
    state : Arrays
        The server's: the sum ``c``, and the versions.
    memories : dict of int to Arrays
        What each site remembers: its number ``ck`` and the round that it is from.
    sinces : list of int
        After each round, from which one everything is new; 0 for none.
    """

    def __init__(self, stages: Stages = ONE_STAGE) -> None:
        self.stages, self.state = stages, {"c": number(0)}
        self.memories: dict[int, Arrays] = {k: {} for k in range(K)}
        self.counted = dict.fromkeys(range(K), 0)
        self.sinces: list[int] = []

    def play(self, r: int, asked: Collection[int], lost: Collection[int] = (), unheard: Collection[int] = ()) -> bool:
        """Play a round; return whether the server could tell what to add."""
        context = turn_of(r, self.stages)
        if context.starts_stage:
            self.state["c"], self.counted = number(0), dict.fromkeys(range(K), 0)
        versions, total = VariateVersions(self.state, context), self.state["c"].clone()
        for k in sorted(asked):
            memory = still_valid(
                {} if k in lost else self.memories[k], {} if context.starts_stage else self.state, context
            )
            new = number(100 * r + k)
            reply = Reply(Site(k, f"site-{k}", k + 1), {"c": new - memory.get("ck", number(0))} | origin(memory))
            self.memories[k] = {"ck": new, ROUND: number(r)}
            if k not in unheard:
                before = dict(reply.arrays)
                arrays = versions.count(reply)
                assert set(arrays) == {"c"}, "an average is of vectors only"
                assert reply.arrays == before
                total, self.counted[k] = total + arrays["c"], int(new)
        if not versions.consistent:
            total, self.counted = number(0), dict.fromkeys(range(K), 0)
        self.state = versions.saved(self.state | {"c": total})
        self.sinces.append(int(self.state[SINCE]) if SINCE in self.state else 0)
        return versions.consistent


HALVES = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)] * 2


def test_without_losses_the_sum_is_that_of_the_last_answers_and_nothing_starts_anew() -> None:
    books = Bookkeeping()
    for r, asked in enumerate(HALVES, 1):
        assert books.play(r, asked)
        assert int(books.state["c"]) == sum(books.counted.values())
    assert set(books.sinces) == {0}
    assert books.state[COUNTED].tolist() == [11, 12, 12, 11]


@pytest.mark.parametrize("trouble", ["lost", "unheard"])
def test_a_lost_memory_shows_at_once_and_a_lost_answer_when_the_site_is_back(trouble: str) -> None:
    """Site 0 takes part in rounds 1, 3, 5, 7, ..."""
    books = Bookkeeping()
    consistent = [
        books.play(r, asked, **{trouble: {0} if r == 3 else ()})  # type: ignore[arg-type]
        for r, asked in enumerate(HALVES, 1)
    ]
    noticed = 3 if trouble == "lost" else 5
    assert [r for r, fine in enumerate(consistent, 1) if not fine] == [noticed]
    assert books.sinces == [0] * (noticed - 1) + [noticed + 1] * (ROUNDS - noticed + 1)
    assert int(books.state["c"]) == sum(books.counted.values())


def test_the_first_answer_of_all_can_be_lost_and_a_newcomers_memory_too() -> None:
    books = Bookkeeping()
    assert books.play(1, (0, 1), unheard={1})
    assert books.play(2, (2, 3), lost={2}), "who had nothing has lost nothing"
    assert not books.play(3, (0, 1)), "what site 1 remembers is not in the sum"


def test_everything_that_was_remembered_before_the_new_start_is_void() -> None:
    books = Bookkeeping()
    books.play(1, range(K))
    assert not books.play(2, (0, 1), lost={0})
    assert int(books.state["c"]) == 0
    context = turn_of(3)
    assert all(still_valid(books.memories[k], books.state, context) == {} for k in range(K))
    assert books.play(3, (2, 3)), "they answer as if for the first time"
    assert int(books.state["c"]) == sum(books.counted.values()) == 302 + 303


def test_a_new_stage_forgets_all_of_it() -> None:
    books = Bookkeeping(TWO_STAGES)
    for r in range(1, ROUNDS + 1):
        assert books.play(r, range(K), lost={1} if r == 3 else ()) == (r != 3)
    assert books.sinces == [0, 0, 4, 4, 4, 4, *[0] * 6]
    first = turn_of(7, TWO_STAGES)
    assert first.starts_stage
    assert still_valid({"ck": number(1), ROUND: number(6)}, {}, first) == {}
    later = turn_of(8, TWO_STAGES)
    assert still_valid({"ck": number(1), ROUND: number(6)}, {}, later) == {}
    assert still_valid({"ck": number(1), ROUND: number(7)}, {}, later)


def test_with_all_sites_nobody_says_where_a_change_starts_and_nothing_is_counted() -> None:
    versions = VariateVersions({"c": number(0), COUNTED: torch.zeros(K, dtype=torch.int64)}, turn_of(2))
    reply = Reply(Site(2, "site-2", 3), {"c": number(5)})
    assert versions.count(reply) == reply.arrays
    assert versions.consistent
    assert versions.saved({"c": number(5)})[COUNTED].tolist() == [0] * K


rounds = st.lists(
    st.tuples(*(st.sets(st.integers(0, K - 1)) for _ in range(3))), min_size=ROUNDS, max_size=ROUNDS
)  # who is asked, who has lost its memory, whose answer gets lost


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(history=rounds, stages=st.sampled_from([ONE_STAGE, TWO_STAGES]))
def test_whatever_gets_lost_the_sum_is_that_of_the_answers_that_count(
    history: list[tuple[set[int], set[int], set[int]]], stages: Stages
) -> None:
    books = Bookkeeping(stages)
    for r, (asked, lost, unheard) in enumerate(history, 1):
        books.play(r, asked, lost, unheard)
        assert int(books.state["c"]) == sum(books.counted.values())
