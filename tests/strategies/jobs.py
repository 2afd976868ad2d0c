"""Objectives on which one algorithm becomes another; and the comparison of two paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edelweiss.federation import FederatedStrategy
from tests.reference.games import RegressionGame
from tests.strategies.halves import Arrays, OpenOracle, drive, regression_oracles, saddle_oracles
from tests.strategies.settings import K, points, torched

ROUNDS = 6
Path = list[tuple[np.ndarray, np.ndarray]]
"""x and y after each round."""

Pair = Callable[[], tuple[Path, Path]]
"""Two runs that must agree."""


@dataclass(frozen=True)
class Job:
    """An objective and its starting point."""

    start: Arrays
    oracles: OpenOracle
    sites: int

    def run(self, strategy: FederatedStrategy, weights: Sequence[float] | None = None, rounds: int = ROUNDS) -> Path:
        return points(drive(strategy, self.start, self.oracles, rounds, self.sites, weights=weights))


def regression(sites: int = K) -> Job:
    game = RegressionGame(K)
    return Job(torched(game.x, game.y), regression_oracles(game), sites)


def saddle(slopes: Sequence[float] | None = None, offsets: np.ndarray | None = None, sites: int = K) -> Job:
    random = np.random.default_rng(3)
    start = torched(random.normal(size=6), random.normal(size=6))
    t = random.uniform(0, 2, sites) if slopes is None else np.array(slopes)
    b = random.normal(0, 3, (sites, 6)) if offsets is None else offsets
    return Job(start, saddle_oracles(t, b), sites)


def descent_ascent(job: Job, lr: float, lr_dual: float, steps: int, rounds: int = ROUNDS) -> Path:
    """Centralised: each step follows the mean of all sites' gradients; the point after every ``steps`` steps."""
    x, y = job.start["x"].clone(), job.start["y"].clone()
    path = []
    for r in range(1, rounds + 1):
        opened = [job.oracles(k, r) for k in range(job.sites)]
        for _ in range(steps):
            gradients = [oracle.gradient(x, y) for oracle in opened]
            x = x - lr * sum(gx for gx, _ in gradients) / job.sites
            y = y + lr_dual * sum(gy for _, gy in gradients) / job.sites
        path.append((x.numpy(), y.numpy()))
    return path


def assert_agree(pair: Pair) -> None:
    """Compare the two runs after every round, and see to it that something moved."""
    left, right = pair()
    assert len(left) == len(right) > 0
    for (x, y), (other_x, other_y) in zip(left, right, strict=True):
        np.testing.assert_allclose(x, other_x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(y, other_y, rtol=0, atol=1e-10)
    assert all(np.abs(after[0] - before[0]).max() > 1e-8 for before, after in pairwise(left)), "nothing moved"
