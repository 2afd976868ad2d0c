"""The iterate that a run returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edelweiss.common import Stream

if TYPE_CHECKING:
    from edelweiss.federation.algorithm import Algorithm
    from edelweiss.federation.stages import RoundContext
    from edelweiss.problems import Arrays


class ReturnedIterate:
    """The model that a run returns, updated in place after each round."""

    def __init__(self, which: str, rounds: int, seed: int) -> None:
        self.which = which
        self.drawn = int(np.random.default_rng([seed, Stream.OUTPUT_ROUND]).integers(1, rounds + 1))
        self.model: Arrays = {}

    def update(self, model: Arrays, context: RoundContext) -> None:
        """Update it with the model after a round."""
        if self.which == "random":
            self.model = model if context.round == self.drawn else self.model
        elif self.which == "last" or context.starts_stage:
            self.model = model
        else:  # running mean over the rounds of this stage
            self.model = {n: self.model[n] + (v - self.model[n]) / context.round_in_stage for n, v in model.items()}


def returned(algorithm: Algorithm) -> str:
    """Describe the model behind the metrics of the last round; empty if it is the last iterate."""
    which = {"average": "the average over the rounds of a stage", "random": "that of a random round"}
    if algorithm.averages_stages:
        what = "a stage ends with the average of its iterates"
    elif algorithm.output in which:
        what = f'output = "{algorithm.output}" returns {which[algorithm.output]}'
    else:
        return ""
    return f"{what}: the last metrics are of that model and may be worse than earlier ones"
