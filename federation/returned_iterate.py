"""Which of its iterates a run returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edelweiss.common import Stream

if TYPE_CHECKING:
    from edelweiss.federation.algorithm import Algorithm
    from edelweiss.federation.stages import RoundContext
    from edelweiss.problems import Arrays


class Output:
    """The model that a run returns, kept up to date round by round in one copy."""

    def __init__(self, which: str, rounds: int, seed: int) -> None:
        self.which = which
        self.drawn = int(np.random.default_rng([seed, Stream.OUTPUT_ROUND]).integers(1, rounds + 1))
        self.model: Arrays = {}

    def update(self, model: Arrays, context: RoundContext) -> None:
        """Take note of the model after a round."""
        if self.which == "random":
            self.model = model if context.round == self.drawn else self.model
        elif self.which == "last" or context.starts_stage:
            self.model = model
        else:  # the running mean over the rounds of this stage
            self.model = {n: self.model[n] + (v - self.model[n]) / context.round_in_stage for n, v in model.items()}


def returned(algorithm: Algorithm) -> str:
    """Say which model the values of the last round are of; empty where it is the one that the rounds led to."""
    which = {"average": "the average over the rounds of a stage", "random": "that of a round drawn by the seed"}
    if algorithm.averages_stages:
        what = "a stage ends with the average of its iterates"
    elif algorithm.output in which:
        what = f'output = "{algorithm.output}" returns {which[algorithm.output]}'
    else:
        return ""
    return f"{what}: the last values are of that model, and may be worse than those before"
