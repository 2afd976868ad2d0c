"""The algorithms as their pseudo-code is printed: loops over stages, rounds, clients and steps, in float64.

Nothing here is shared with the product. Every function returns the server's model after each round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tests.reference.games import Game, Vector

Point = tuple[Vector, Vector]
TRIFLE = Fraction(1, 10**6)  # of a round: no round more for it


@dataclass
class Stage:
    """Rounds (numbered from 1 over the whole run) that share a step size and a number of local steps."""

    rounds: list[int]
    shrink: float
    steps: int


def plan(
    rounds: int, steps: int, iterations: int = 0, decay: float = 3, growth: float = 1, steps_growth: float = 1
) -> list[Stage]:
    """Cut a run into stages: T_s = T_1 growth^(s-1), q_s = q_1 steps_growth^(s-1), η_s = η_1 / decay^(s-1)."""
    stages: list[Stage] = []
    done = 0
    while done < rounds:
        s = len(stages) + 1
        steps_now = math.floor(Fraction(str(steps_growth)) ** (s - 1) * steps + Fraction(1, 2))
        iterations_now = Fraction(str(growth)) ** (s - 1) * iterations
        length = max(1, math.ceil(iterations_now / steps_now - TRIFLE)) if iterations else rounds
        length = min(length, rounds - done)
        stages.append(Stage([done + 1 + i for i in range(length)], 1 / decay ** (s - 1), steps_now))
        done += length
    return stages


def everyone(game: Game, round: int, participants: Sequence[Collection[int]] | None) -> list[int]:
    """Return who takes part in a round, in order."""
    return sorted(range(game.clients) if participants is None else participants[round - 1])


def weighted(values: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Return Σ w v / Σ w."""
    total = np.zeros_like(values[0])
    for value, weight in zip(values, weights, strict=True):
        total = total + weight * value
    return np.asarray(total / sum(weights))


def fedavg(
    game: Game,
    x: Vector,
    stages: list[Stage],
    eta: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Vector]:
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            answers = []
            for k in chosen:
                xk = x.copy()
                for t in range(stage.steps):
                    xk = xk - eta * stage.shrink * game.gradients(k, xk, np.zeros(0), r, t)[0]
                answers.append(xk)
            x = weighted(answers, [weights[k] for k in chosen])
            history.append(x)
    return history


def fedavg_adam(
    game: Game,
    x: Vector,
    stages: list[Stage],
    eta: float,
    betas: tuple[float, float],
    epsilon: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Vector]:
    """FedAvg whose clients take Adam's steps (Kingma & Ba 2015, Algorithm 1), m = v = t = 0 in every round."""
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            answers = []
            for k in chosen:
                xk, m, v = x.copy(), np.zeros_like(x), np.zeros_like(x)
                for t in range(1, stage.steps + 1):
                    g = game.gradients(k, xk, np.zeros(0), r, t - 1)[0]
                    m = betas[0] * m + (1 - betas[0]) * g
                    v = betas[1] * v + (1 - betas[1]) * g**2
                    m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
                    xk = xk - eta * stage.shrink * m_hat / (np.sqrt(v_hat) + epsilon)
                answers.append(xk)
            x = weighted(answers, [weights[k] for k in chosen])
            history.append(x)
    return history


def local_sgda(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    eta_x: float,
    eta_y: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Point]:
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            answers_x, answers_y = [], []
            for k in chosen:
                xk, yk = x.copy(), y.copy()
                for t in range(stage.steps):
                    by_x, by_y = game.gradients(k, xk, yk, r, t)
                    xk = xk - eta_x * stage.shrink * by_x
                    yk = game.feasible(yk + eta_y * stage.shrink * by_y)
                answers_x.append(xk)
                answers_y.append(yk)
            x = weighted(answers_x, [weights[k] for k in chosen])
            y = weighted(answers_y, [weights[k] for k in chosen])
            history.append((x, y))
    return history


def fess_gda(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    eta_x: float,
    eta_y: float,
    eta_global: tuple[float, float],
    p: float,
    beta: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Point]:
    """FESS-GDA; the server's x takes a step on f(x, y) + p/2 ‖x - z‖², of which the clients know only f."""
    weights = weights or [1.0] * game.clients
    history, z = [], x.copy()
    for stage in stages:
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            share = [weights[k] for k in chosen]
            moved_x, moved_y = [], []
            for k in chosen:
                xk, yk = x.copy(), y.copy()
                for t in range(stage.steps):
                    by_x, by_y = game.gradients(k, xk, yk, r, t)
                    xk = xk - eta_x * stage.shrink * by_x
                    yk = game.feasible(yk + eta_y * stage.shrink * by_y)
                moved_x.append(xk - x)
                moved_y.append(yk - y)
            smoothing = eta_x * stage.shrink * eta_global[0] * stage.steps * p * (x - z)
            x = x + eta_global[0] * weighted(moved_x, share) - smoothing
            y = y + eta_global[1] * weighted(moved_y, share)
            z = z + beta * (x - z)
            history.append((x, y))
    return history


def coda_plus(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    eta: float,
    gamma: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Point]:
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        step_size = eta * stage.shrink
        anchor = x.copy()
        iterates: list[list[Point]] = [[] for _ in range(game.clients)]
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            answers_x, answers_y = [], []
            for k in chosen:
                xk, yk = x.copy(), y.copy()
                for t in range(stage.steps):
                    by_x, by_y = game.gradients(k, xk, yk, r, t)
                    xk = xk - step_size * (by_x + gamma * (xk - anchor))
                    yk = game.feasible(yk + step_size * by_y)
                    iterates[k].append((xk, yk))
                answers_x.append(xk)
                answers_y.append(yk)
            share = [weights[k] for k in chosen]
            x, y = weighted(answers_x, share), weighted(answers_y, share)
            if r == stage.rounds[-1]:  # the average over clients and iterations, also of clients that are not here now
                share = [weights[k] for k in range(game.clients) for _ in iterates[k]]
                every_x, every_y = zip(*(point for points in iterates for point in points), strict=True)
                x, y = weighted(every_x, share), weighted(every_y, share)
            history.append((x, y))
    return history


def codasca(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    eta_local: float,
    eta_global: float,
    gamma: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
    lost: Collection[tuple[int, int]] = (),
    output: Callable[[list[Point]], Point] = lambda points: points[-1],
) -> list[Point]:
    """CODASCA; with ``participants`` the server adds up changes of control variates instead of averaging them.

    ``lost`` holds (round, client): there the client starts without its memory. ``output`` makes what a stage hands on
    of the points of its rounds.
    """
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        eta = eta_local * stage.shrink
        anchor = x.copy()
        c_x, c_y = np.zeros_like(x), np.zeros_like(y)
        own_x = [np.zeros_like(x) for _ in range(game.clients)]
        own_y = [np.zeros_like(y) for _ in range(game.clients)]
        points = []
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            answers_x, answers_y, changes_x, changes_y = [], [], [], []
            for k in chosen:
                if (r, k) in lost:
                    own_x[k], own_y[k] = np.zeros_like(x), np.zeros_like(y)
                xk, yk = x.copy(), y.copy()
                for t in range(stage.steps):
                    by_x, by_y = game.gradients(k, xk, yk, r, t)
                    xk = xk - eta * (by_x + gamma * (xk - anchor) - own_x[k] + c_x)
                    yk = game.feasible(yk + eta * (by_y - own_y[k] + c_y))
                next_x = own_x[k] - c_x + (x - xk) / (stage.steps * eta)
                next_y = own_y[k] - c_y + (yk - y) / (stage.steps * eta)
                changes_x.append(next_x - own_x[k])
                changes_y.append(next_y - own_y[k])
                own_x[k], own_y[k] = next_x, next_y
                answers_x.append(xk)
                answers_y.append(yk)
            share = [weights[k] for k in chosen]
            if participants is None:
                c_x, c_y = weighted(own_x, weights), weighted(own_y, weights)
            else:
                for change_x, change_y, weight in zip(changes_x, changes_y, share, strict=True):
                    c_x = c_x + weight * change_x / sum(weights)
                    c_y = c_y + weight * change_y / sum(weights)
            x = x + eta_global * (weighted(answers_x, share) - x)
            y = y + eta_global * (weighted(answers_y, share) - y)
            points.append((x, y))
            if r == stage.rounds[-1]:
                x, y = output(points)
            history.append((x, y))
    return history
