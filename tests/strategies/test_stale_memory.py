"""A site that missed messages: what it remembers counts as long as its algorithm says, and then as if it were lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from edelweiss.federation import FederatedStrategy, Oracle, RoundContext
from tests.strategies.closed_form import build, objective
from tests.strategies.halves import Arrays, drive
from tests.strategies.memories import REMEMBERING

K, Q, ROUNDS, SITE = 3, 2, 6, 1
STAGE = 3  # rounds
Kept = tuple[RoundContext, Arrays]
"""What a site remembers after its part of a turn."""

LASTS: dict[str, Callable[[RoundContext, RoundContext], bool]] = {
    "within the round": lambda then, now: then.round == now.round,
    "to the next round": lambda then, now: now.round - then.round <= 1,
    "within the stage": lambda then, now: then.stage == now.stage,
    "for the run": lambda then, now: True,
}
KINDS = {
    "within the round": ["sagda", "fedgda-gt"],
    "to the next round": ["acc-fcsg-m", "adafgda", "fgda", "fmgda"],
    "within the stage": ["coda", "coda-plus", "codasca", "feddyn", "scaffold"],
    "for the run": ["alone", "d-psgd", "deprl", "dispfl", "ditto", "fedbn", "fedrep", "fedrod", "local-scgd"],
}


def test_each_algorithm_that_remembers_says_how_long() -> None:
    assert sorted(name for names in KINDS.values() for name in names) == sorted(REMEMBERING)


def played(strategy: FederatedStrategy) -> tuple[list[tuple[RoundContext, Arrays]], list[Kept], Callable[[], Oracle]]:
    """Return what a site was sent in each turn, what it remembered after it, and how to open its oracle."""
    start, oracles, _ = objective(type(strategy), K)
    sent_then: list[tuple[RoundContext, Arrays]] = []
    half = type(strategy).local_update

    def noting(self: FederatedStrategy, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext):  # type: ignore[no-untyped-def]
        if oracle is opened:
            sent_then.append((context, sent))
        reply, new = half(self, sent, memory, oracle, context)
        if oracle is opened:
            kept.append((context, new))
        return reply, new

    opened, kept = oracles(SITE, 1), list[Kept]()
    watched = type("Watched", (type(strategy),), {"local_update": noting, "name": strategy.name})
    drive(watched(**vars(strategy)), start, lambda k, r: opened if k == SITE else oracles(k, r), ROUNDS, K)  # type: ignore[arg-type]
    return sent_then, kept, lambda: oracles(SITE, 1)


def equal(one: tuple[Arrays, Arrays], other: tuple[Arrays, Arrays]) -> bool:
    """Whether replies and memories are the same, to the last bit."""
    return all(
        mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
        for mine, theirs in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_memory_counts_as_long_as_its_algorithm_says_and_then_as_a_lost_one(name: str) -> None:
    """Whatever messages a site missed since: of each memory that it ever had and each message after it."""
    strategy = build(name, local_steps=Q, stage_iterations=STAGE * Q)
    lasts = LASTS[next(kind for kind, names in KINDS.items() if name in names)]
    sent_then, kept, oracle = played(strategy)
    felt = {True: 0, False: 0}
    for place, (now, sent) in enumerate(sent_then):
        lost = strategy.local_update(sent, {}, oracle(), now)
        for then, memory in kept[:place]:
            counts = lasts(then, now)
            differs = not equal(strategy.local_update(sent, memory, oracle(), now), lost)
            felt[counts] += differs
            assert counts or not differs, f"{now.phase} {now.round} with a memory of {then.phase} {then.round}"
    assert felt[True], "a memory that counts is felt"


def test_sagda_steps_without_correction_where_it_missed_the_first_half_of_a_round() -> None:
    """As FSGDA does: neither with the control variate of an earlier round nor with zero in its place."""
    strategy = build("sagda", local_steps=Q)
    sent_then, kept, oracle = played(strategy)
    (now, sent), (_, stale) = sent_then[5], kept[2]  # steps of round 3; what it remembered in round 2 before its steps
    assert now.phase == "train"
    assert stale
    own = strategy.local_update(sent, stale, oracle(), now)
    zeros = {name: torch.zeros_like(sent[name]) for name in ("vx", "vy")}
    plain = strategy.local_update(sent | zeros, {}, oracle(), now)
    assert equal(own, plain)
