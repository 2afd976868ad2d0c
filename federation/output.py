"""Which of its iterates a run returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keys import Stream

if TYPE_CHECKING:
    from federation.stages import Turn
    from problems import Arrays


class Output:
    """The model that a run returns, kept up to date round by round in one copy."""

    def __init__(self, which: str, rounds: int, seed: int) -> None:
        self.which = which
        self.drawn = int(np.random.default_rng([seed, Stream.OUTPUT_ROUND]).integers(1, rounds + 1))
        self.model: Arrays = {}

    def update(self, model: Arrays, turn: Turn) -> None:
        """Take note of the model after a round."""
        if self.which == "random":
            self.model = model if turn.round == self.drawn else self.model
        elif self.which == "last" or turn.starts_stage:
            self.model = model
        else:  # the running mean over the rounds of this stage
            self.model = {n: self.model[n] + (v - self.model[n]) / turn.round_in_stage for n, v in model.items()}
