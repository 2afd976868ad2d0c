"""The baselines for plain minimisation as their pseudo-code is printed, in float64.

Nothing here is shared with the product. Every function returns the server's x after each round.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tests.reference.algorithms import Stage, everyone, weighted
from tests.reference.games import Game, Vector

NOTHING = np.zeros(0)  # y


def fedprox(
    game: Game,
    x: Vector,
    stages: list[Stage],
    eta: float,
    mu: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Vector]:
    """Li et al. 2020, Algorithm 2, each client taking the stage's steps on h_k(w; x) = f_k(w) + μ/2 ‖w - x‖²."""
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            answers = []
            for k in chosen:
                w = x.copy()
                for t in range(stage.steps):
                    gradient = game.gradients(k, w, NOTHING, r, t)[0] + mu * (w - x)
                    w = w - eta * stage.shrink * gradient
                answers.append(w)
            x = weighted(answers, [weights[k] for k in chosen])
            history.append(x)
    return history


def scaffold(
    game: Game,
    x: Vector,
    stages: list[Stage],
    eta: float,
    eta_server: float,
    momentum: float = 0.0,
    decay: float = 0.0,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Vector]:
    """Karimireddy et al. 2020, Algorithm 1 with option II: c_k becomes the mean of the round's gradients.

    It is kept as that mean, gradient by gradient, and not as the difference of two points. With momentum a gradient
    counts as often as it moves the model; weight decay is part of it.
    """
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        c = [np.zeros_like(x) for _ in range(game.clients)]
        c_server = np.zeros_like(x)
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            answers, changes = [], []
            for k in chosen:
                w, velocity = x.copy(), np.zeros_like(x)
                total, share = np.zeros_like(x), 0.0
                for t in range(stage.steps):
                    gradient = game.gradients(k, w, NOTHING, r, t)[0] + decay * w
                    velocity = momentum * velocity + gradient - c[k] + c_server
                    w = w - eta * stage.shrink * velocity
                    often = sum(momentum**s for s in range(stage.steps - t))
                    total, share = total + often * gradient, share + often
                answers.append(w)
                changes.append(total / share - c[k])
                c[k] = total / share
            there = sum(weights[k] for k in chosen)
            x = x + eta_server * (weighted(answers, [weights[k] for k in chosen]) - x)
            c_server = c_server + there / sum(weights) * weighted(changes, [weights[k] for k in chosen])
            history.append(x)
    return history


def feddyn(
    game: Game,
    x: Vector,
    stages: list[Stage],
    eta: float,
    alpha: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Vector]:
    """Acar et al. 2021, Algorithm 1, the minimisation being the stage's gradient steps."""
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        gradients = [np.zeros_like(x) for _ in range(game.clients)]  # ∇L_k, as the paper calls what h_k is
        h = np.zeros_like(x)
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            answers = []
            for k in chosen:
                theta = x.copy()
                for t in range(stage.steps):
                    slope = game.gradients(k, theta, NOTHING, r, t)[0] - gradients[k] + alpha * (theta - x)
                    theta = theta - eta * stage.shrink * slope
                gradients[k] = gradients[k] - alpha * (theta - x)
                answers.append(theta)
            h = h - alpha * sum(weights[k] * (theta - x) for k, theta in zip(chosen, answers, strict=True)) / sum(
                weights
            )
            x = weighted(answers, [weights[k] for k in chosen]) - h / alpha
            history.append(x)
    return history


def fedopt(
    game: Game,
    x: Vector,
    stages: list[Stage],
    eta_local: float,
    eta: float,
    betas: tuple[float, float],
    tau: float,
    kind: str,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Vector]:
    """Reddi et al. 2021, Algorithm 2, with the second moment of Adam or Yogi."""
    weights = weights or [1.0] * game.clients
    history, m, v = [], np.zeros_like(x), np.full_like(x, tau**2)
    for stage in stages:
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            ways = []
            for k in chosen:
                w = x.copy()
                for t in range(stage.steps):
                    w = w - eta_local * stage.shrink * game.gradients(k, w, NOTHING, r, t)[0]
                ways.append(w - x)
            delta = weighted(ways, [weights[k] for k in chosen])
            m = betas[0] * m + (1 - betas[0]) * delta
            if kind == "adam":
                v = betas[1] * v + (1 - betas[1]) * delta**2
            else:
                v = v - (1 - betas[1]) * delta**2 * np.sign(v - delta**2)
            x = x + eta * m / (np.sqrt(v) + tau)
            history.append(x)
    return history
