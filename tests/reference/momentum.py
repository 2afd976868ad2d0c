"""Local SGDA+, Momentum Local SGDA(+) and CODA as their pseudo-code is printed; see algorithms.py.

Nothing here is shared with the product. Every function returns the server's model after each round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from tests.reference.algorithms import Point, Stage, everyone, weighted
from tests.reference.games import Game, RegressionGame, SaddleGame, Vector


def sgda_at_snapshots(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    eta_x: float,
    eta_y: float,
    snapshot_rounds: Callable[[Stage], int],
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Point]:
    """Local SGDA+; ``snapshot_rounds`` says how many rounds of a stage a snapshot lasts."""
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        for count, r in enumerate(stage.rounds):
            if count % snapshot_rounds(stage) == 0:
                frozen = x.copy()
            chosen = everyone(game, r, participants)
            answers_x, answers_y = [], []
            for k in chosen:
                xk, yk = x.copy(), y.copy()
                for t in range(stage.steps):
                    by_x = game.gradients(k, xk, yk, r, t)[0]
                    by_y = game.gradients(k, frozen, yk, r, t)[1]
                    xk = xk - eta_x * stage.shrink * by_x
                    yk = game.feasible(yk + eta_y * stage.shrink * by_y)
                answers_x.append(xk)
                answers_y.append(yk)
            x = weighted(answers_x, [weights[k] for k in chosen])
            y = weighted(answers_y, [weights[k] for k in chosen])
            history.append((x, y))
    return history


def momentum_sgda(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    eta_x: float,
    eta_y: float,
    alpha: float,
    beta_x: float,
    beta_y: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
    snapshot_rounds: Callable[[Stage], int] | None = None,
) -> list[Point]:
    """Momentum Local SGDA or, with ``snapshot_rounds``, Momentum Local SGDA+."""
    weights = weights or [1.0] * game.clients
    history = []
    d_x, d_y, begun = x, y, False  # no directions yet
    for stage in stages:
        for count, r in enumerate(stage.rounds):
            if snapshot_rounds and count % snapshot_rounds(stage) == 0:
                frozen = x.copy()
            chosen = everyone(game, r, participants)
            answers: list[list[Vector]] = [[], [], [], []]
            for k in chosen:
                xk, yk, batch = x.copy(), y.copy(), 0
                dk_x, dk_y = d_x, d_y
                if not begun:
                    dk_x, dk_y = game.gradients(k, xk, yk, r, batch)
                    batch += 1
                for _ in range(stage.steps):
                    xk = xk - eta_x * stage.shrink * alpha * dk_x
                    yk = game.feasible(yk + eta_y * stage.shrink * alpha * dk_y)
                    by_x, by_y = game.gradients(k, xk, yk, r, batch)
                    if snapshot_rounds:
                        by_y = game.gradients(k, frozen, yk, r, batch)[1]
                    batch += 1
                    dk_x = (1 - beta_x * alpha) * dk_x + beta_x * alpha * by_x
                    dk_y = (1 - beta_y * alpha) * dk_y + beta_y * alpha * by_y
                for answer, vector in zip(answers, (xk, yk, dk_x, dk_y), strict=True):
                    answer.append(vector)
            x, y, d_x, d_y = (weighted(answer, [weights[k] for k in chosen]) for answer in answers)
            begun = True
            history.append((x, y))
    return history


def dual_sums(game: Game, client: int, x: Vector) -> tuple[Vector, float]:
    """Return (Σ v_i, n), v_i the y that is best for sample i alone; in the regression game client k has 30 - 5k."""
    if isinstance(game, SaddleGame):
        return game.offsets[client] - game.slopes[client] * x, 1.0
    assert isinstance(game, RegressionGame)
    total, count = np.zeros(game.dual), 30 - 5 * client
    for i in range(count):
        residual = float(game.features[client][i] @ x - game.targets[client][i])
        total = total + residual * game.couplings[client][i]
    return total, float(count)


def coda(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    eta: float,
    gamma: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
    lost: Collection[tuple[int, int]] = (),
) -> list[Point]:
    """CODA; ``lost`` holds (round, client): there the client starts its average anew."""
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        step_size, anchor = eta * stage.shrink, x.copy()
        iterates: list[list[Vector]] = [[] for _ in range(game.clients)]
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            answers_x, answers_y = [], []
            for k in chosen:
                if (r, k) in lost:
                    iterates[k] = []
                xk, yk = x.copy(), game.feasible(y)
                for t in range(stage.steps):
                    by_x, by_y = game.gradients(k, xk, yk, r, t)
                    xk = xk - step_size * (by_x + gamma * (xk - anchor))
                    yk = game.feasible(yk + step_size * by_y)
                    iterates[k].append(xk)
                answers_x.append(xk)
                answers_y.append(yk)
            share = [weights[k] for k in chosen]
            if r == stage.rounds[-1]:
                counts = [weights[k] * len(iterates[k]) for k in chosen]  # one that lost its memory has fewer
                x = weighted([np.mean(iterates[k], axis=0) for k in chosen], counts)
                sums = [dual_sums(game, k, x) for k in chosen]
                y = weighted([total / count for total, count in sums], share)
            else:
                x, y = weighted(answers_x, share), weighted(answers_y, share)
            history.append((x, y))
    return history
