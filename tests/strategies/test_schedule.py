"""Stages: what must hold for every length, decay and growth."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from edelweiss.config import ConfigError, RunConfig
from edelweiss.federation import RoundContext, Stages
from edelweiss.federation.returned_iterate import ReturnedIterate
from edelweiss.strategies.codasca import Codasca
from edelweiss.strategies.fedavg import FedAvg
from tests.reference.algorithms import TRIFLE, plan

GROWTHS = st.sampled_from([1.0, 1.1, 1.2, 1.5, 2.0, 3.0])


def turns(stages: Stages, rounds: int) -> list[RoundContext]:
    return [stages.context(r, rounds) for r in range(1, rounds + 1)]


@settings(deadline=None, max_examples=300)
@given(
    rounds=st.integers(1, 40),
    steps=st.sampled_from([1, 3, 1000, 333_333, 500_000, 999_999, 10**6]),
    iterations=st.sampled_from([0, 1, 7, 50, 10**6, 10**8]),
    growth=st.sampled_from([1.0, 1.1, 2.0, 10.0]),
    steps_growth=st.sampled_from([1.0, 1.05, 1.5, 2.0, 3.0, 10.0, 1e6]),
)
def test_a_run_is_refused_where_one_of_its_rounds_has_more_steps_than_allowed_and_only_there(
    rounds: int, steps: int, iterations: int, growth: float, steps_growth: float
) -> None:
    """As its rounds have them, one by one: in whole steps, and whole rounds of a stage."""
    keys = {"local-steps": steps, "stage-iterations": iterations, "stage-growth": growth, "rounds": rounds}
    stages = Stages(steps, iterations, growth=growth, steps_growth=steps_growth)
    first = None
    for r in range(1, rounds + 1):
        if (context := stages.context(r, rounds)).local_steps > 10**6:
            first = r, context.local_steps
            break
    assert stages.beyond(rounds) == first
    if first is None:
        assert RunConfig.parse(keys | {"stage-steps-growth": steps_growth})
        return
    with pytest.raises(ConfigError) as told:
        RunConfig.parse(keys | {"stage-steps-growth": steps_growth})
    (text,) = told.value.problems
    assert f"from round {first[0]} on a site would take {first[1]:,} local steps" in text


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    rounds=st.integers(1, 40),
    steps=st.integers(1, 12),
    iterations=st.integers(0, 120),
    decay=st.sampled_from([1.0, 2.0, 3.0, 4.5]),
    growth=GROWTHS,
    steps_growth=GROWTHS,
)
def test_stages(rounds: int, steps: int, iterations: int, decay: float, growth: float, steps_growth: float) -> None:
    path = turns(Stages(steps, iterations, decay, growth, steps_growth), rounds)
    assume(path[-1].local_steps < 2**50)  # beyond it no floating-point number is a half
    assert [context.round for context in path] == list(range(1, rounds + 1))
    # Stages follow each other without a gap; first and last mark their ends; the last round ends one.
    assert path[0].stage == 1
    assert path[0].starts_stage
    assert path[-1].ends_stage
    for context, following in pairwise(path):
        assert following.stage - context.stage in (0, 1)
        assert following.starts_stage == context.ends_stage == (following.stage > context.stage)
        assert following.iteration == context.iteration + context.local_steps
        assert following.round_in_stage == (1 if following.starts_stage else context.round_in_stage + 1)
    assert path[0].iteration == 0
    if not iterations:
        assert {context.stage for context in path} == {1}
    for stage in range(1, path[-1].stage + 1):
        members = [context for context in path if context.stage == stage]
        assert all(context.rate == pytest.approx(1 / decay ** (stage - 1)) for context in members)
        assert len({context.local_steps for context in members}) == 1
        q = members[0].local_steps
        assert abs(q - steps * steps_growth ** (stage - 1)) <= 0.5 + 1e-9
        if iterations:  # as many rounds as give at least T_s steps, and not one more, unless the run ends first
            wanted = Fraction(str(growth)) ** (stage - 1) * iterations
            assert q * (len(members) - 1) < wanted
            assert q * (len(members) + TRIFLE) >= wanted or members[-1].round == rounds


@settings(deadline=None, max_examples=100)
@given(
    rounds=st.integers(1, 40),
    steps=st.integers(1, 12),
    iterations=st.integers(0, 120),
    growth=GROWTHS,
    steps_growth=GROWTHS,
)
def test_the_plan_of_the_reference_is_the_same(
    rounds: int, steps: int, iterations: int, growth: float, steps_growth: float
) -> None:
    path = turns(Stages(steps, iterations, 3.0, growth, steps_growth), rounds)
    stages = plan(rounds, steps, iterations, 3, growth, steps_growth)
    expected = [
        (r, number, r == stage.rounds[0], r == stage.rounds[-1])
        for number, stage in enumerate(stages, 1)
        for r in stage.rounds
    ]
    assert [(t.round, t.stage, t.starts_stage, t.ends_stage) for t in path] == expected
    # Beyond 2^53 a power and a product of as many factors round differently.
    assert [t.local_steps for t in path] == pytest.approx([s.steps for s in stages for _ in s.rounds], rel=1e-12)


def test_a_stage_is_not_longer_because_of_rounding() -> None:
    assert 50 * 1.1 > 55, "this is why"
    path = turns(Stages(1, 50, 1.0, 1.1), 200)
    assert sum(context.stage == 2 for context in path) == 55


def test_the_length_of_the_run_changes_only_where_its_last_stage_ends() -> None:
    stages = Stages(5, 20, 3.0, 1.5)
    for short, long in zip(turns(stages, 9), turns(stages, 30), strict=False):
        assert (short.stage, short.rate, short.starts_stage) == (long.stage, long.rate, long.starts_stage)
        assert short.ends_stage == (long.ends_stage or short.round == 9)


def test_an_algorithms_fields_are_its_stages() -> None:
    strategy = Codasca(local_steps=7, stage_iterations=21, stage_decay=2.0, stage_growth=1.5, stage_steps_growth=1.25)
    stages = Stages(7, 21, 2.0, 1.5, 1.25)
    for r in range(1, 11):
        assert strategy.context(r, 10, "train", 4) == replace(stages.context(r, 10), sites=4)
    assert strategy.context(4, 10, "train", 4).rate == 1 / 2
    assert FedAvg().context(10**6, 10**6, "train", 4).stage == 1


def test_a_stage_has_a_round_at_least_however_long_a_round_is() -> None:
    stages = Stages(local_steps=10**7, iterations=1)  # 10⁻⁷ rounds, less than what is forgiven for rounding
    assert [stages.context(r, 3).stage for r in (1, 2, 3)] == [1, 2, 3]


def test_a_round_that_is_drawn_may_be_any_of_them() -> None:
    assert {ReturnedIterate("random", 3, seed).drawn for seed in range(50)} == {1, 2, 3}
