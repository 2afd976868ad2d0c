"""Stages: how step size, length and number of local steps change over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_STEPS = 10**6  # most local steps of a round
STAGES_TRIED = 10_000  # most stages examined for too many steps


@dataclass(frozen=True)
class RoundContext:
    """The position of a phase in its run, passed to every hook on both sides."""

    # round, rounds: 1 to R, and R
    round: int
    phase: str  # one of the algorithm's `phases`
    stage: int  # s, from 1
    # starts_stage, ends_stage: whether this is the first or the last round of its stage
    starts_stage: bool
    ends_stage: bool
    rate: float  # η_s / η_1, which multiplies the step sizes
    local_steps: int  # q_s, local steps between two communications
    iteration: int  # local steps before this round, in one phase, at a site with full participation
    round_in_stage: int  # 1 in the first round of a stage
    rounds: int = 0
    sites: int = 0  # K, all sites of the run
    total_weight: float = 0.0  # sum of the weights of all K sites, participating or not; known only to the server


@dataclass(frozen=True)
class Stages:
    """Geometric stages, as CODA, CODA+ and CODASCA use them.

    Stage s has T_s = T_1 growth^(s-1) iterations with step size η_s = η_1 / decay^(s-1) and
    q_s = q_1 steps_growth^(s-1) local steps. The papers' theory grows T_s as it shrinks η_s (growth = decay); their
    practical rule keeps the length and divides the step size by 3 (decay 3, growth 1).
    """

    local_steps: int  # q_1 ≥ 1
    iterations: int = 0  # T_1 ≥ 0 local steps; 0 makes the whole run one stage
    # decay, growth, steps_growth: ≥ 1
    decay: float = 3.0
    growth: float = 1.0
    steps_growth: float = 1.0

    @lru_cache(maxsize=1024)  # noqa: B019  few values, requested often
    def context(self, round: int, rounds: int, phase: str = "train", sites: int = 0) -> RoundContext:
        """Return the context of round ``round`` of ``rounds`` with K ``sites``; the last round always ends a stage.

        Raises
        ------
        ValueError
            For a round outside 1 to ``rounds``.
        """
        if not 1 <= round <= rounds:
            raise ValueError(f"round = {round}: a run of {rounds} rounds has rounds 1 to {rounds}")
        iteration = 0
        for stage, start, length, steps in self._each(rounds):  # noqa: B007  used after the loop
            if round < start + length:
                break
            iteration += length * steps
        return RoundContext(
            round=round,
            rounds=rounds,
            phase=phase,
            stage=stage,
            starts_stage=round == start,
            ends_stage=round == start + length - 1,
            rate=self.decay ** (1 - stage),
            local_steps=steps,
            iteration=iteration + (round - start) * steps,
            round_in_stage=round - start + 1,
            sites=sites,
        )

    def beyond(self, rounds: int) -> tuple[int, int] | None:
        """Return the first round with more than `MOST_STEPS` local steps, and their number; None without one."""
        if not self.iterations or self.steps_growth == 1:
            return None
        stages = islice(self._each(rounds), STAGES_TRIED)
        return next(((start, steps) for _, start, _, steps in stages if steps > MOST_STEPS), None)

    def _each(self, rounds: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield for each stage its number, first round, number of rounds, and local steps per round."""
        stage, start = 1, 1
        while start <= rounds:
            steps = math.floor(self.local_steps * self.steps_growth ** (stage - 1) + 0.5)
            length = rounds + 1 - start
            if self.iterations:
                # The tolerance is for rounding: 50 · 1.1 is slightly above 55.
                wanted = math.ceil(self.iterations * self.growth ** (stage - 1) / steps - 1e-6)
                length = min(length, max(1, wanted))
            yield stage, start, length, steps
            stage, start = stage + 1, start + length
