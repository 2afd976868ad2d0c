"""What the equations of every algorithm are checked on: games with their oracles, stages, weights, who takes part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from tests.reference import algorithms as reference
from tests.reference.games import Game, RegressionGame, SaddleGame, Vector
from tests.strategies.halves import Arrays, OpenOracle, regression_oracles, saddle_oracles

K, ROUNDS = 4, 8
# Stages of 3 rounds of 3 steps, 3 rounds of 6 steps, and what is left: 2 rounds of 12 steps.
STAGES: dict[str, Any] = {
    "local_steps": 3,
    "stage_iterations": 9,
    "stage_decay": 2.0,
    "stage_growth": 2.0,
    "stage_steps_growth": 2.0,
}
PLAN = reference.plan(ROUNDS, 3, 9, decay=2, growth=2, steps_growth=2)

Everyone = Sequence[tuple[int, int]] | None
# Clients 2 and 3 miss the first round of stage 2, client 0 of stage 3; nobody takes part in all.
SOME = [(0, 1), (2, 3), (0, 2), (0, 1), (1, 3), (0, 2), (1, 2), (0, 3)]
WEIGHTS = [1.0, 5.0, 2.0, 0.5]
GAMES = ["saddle", "regression", "regression-clipped"]

by_game = pytest.mark.parametrize("name", GAMES)
by_weights = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
by_turnout = pytest.mark.parametrize(
    ("some", "weights"), [(None, None), (None, WEIGHTS), (SOME, WEIGHTS)], ids=["all", "all-weighted", "some-weighted"]
)
"""Equal weights with some of the sites are left out: they are one case of any weights."""


def share(some: Everyone) -> float:
    """Return the ``fraction`` that goes with the participants."""
    return 1.0 if some is None else 0.5


def setting(name: str) -> tuple[Game, Vector, Vector, OpenOracle]:
    """Return a game, a starting point, and the product's oracles of the same objective."""
    if name == "saddle":
        random = np.random.default_rng(5)
        slopes, offsets = random.uniform(0, 2, K), random.normal(0, 3, (K, 6))
        x, y = random.normal(size=(2, 6))
        return SaddleGame(slopes, offsets), x, y, saddle_oracles(slopes, offsets)
    game = RegressionGame(K, clip=name.endswith("clipped"))
    return game, game.x, game.y, regression_oracles(game)


def torched(x: Vector, y: Vector | None = None) -> Arrays:
    """Return copies as what a run starts from."""
    return {"x": torch.from_numpy(x.copy())} | ({} if y is None else {"y": torch.from_numpy(y.copy())})


def agree(states: Sequence[Arrays], history: Sequence[reference.Point], tolerance: float = 1e-9) -> None:
    """Compare x and y round by round, and see to it that they moved and are numbers."""
    assert len(states) == len(history) == ROUNDS
    for r, (state, (x, y)) in enumerate(zip(states, history, strict=True), 1):
        np.testing.assert_allclose(state["x"].numpy(), x, rtol=0, atol=tolerance, err_msg=f"x after round {r}")
        np.testing.assert_allclose(state["y"].numpy(), y, rtol=0, atol=tolerance, err_msg=f"y after round {r}")
    # Neither side stood still, and nothing overflowed: the comparison means something.
    moved = [np.abs(after[0] - before[0]).max() for before, after in pairwise(history)]
    assert min(moved) > 1e-6
    assert np.isfinite(history[-1][0]).all()


def points(states: Sequence[Arrays]) -> list[reference.Point]:
    """Return x and y of each state in NumPy."""
    return [(state["x"].numpy(), state["y"].numpy()) for state in states]
