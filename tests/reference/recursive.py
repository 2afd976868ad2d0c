"""FMGDA, FGDA and AdaFGDA as their pseudo-code is printed: one loop over iterations, with all clients side by side.

Nothing here is shared with the product. Synchronisation stands where the papers have it, in the middle of an iteration
(FMGDA) or at its beginning; the product cuts the same sequence of operations into rounds. Every function returns the
server's model after each round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tests.reference.algorithms import Point, Stage, weighted
from tests.reference.games import Game, Vector

Falling = Callable[[int], float]
"""Iteration t → a number that depends on it."""


@dataclass
class Rates:
    """η_t, and the weights α_t and β_t of the estimators that follow the step of iteration t."""

    eta: Falling
    alpha: Falling
    beta: Falling


def constant(alpha: float, beta: float) -> Rates:
    return Rates(lambda t: 1.0, lambda t: alpha, lambda t: beta)


def cube_root(clients: int, n: float, m: float, c1: float, c2: float) -> Rates:
    """Return η_t = n K^{1/3} / (m + t)^{1/3}, α_t = c1 η_t², β_t = c2 η_t², no weight above 1."""

    def eta(t: int) -> float:
        return n * float(np.cbrt(clients)) / float(np.cbrt(m + t))

    def capped(c: float) -> Falling:
        return lambda t: c * eta(t) ** 2 if c * eta(t) ** 2 < 1 else 1.0

    return Rates(eta, capped(c1), capped(c2))


@dataclass
class Iteration:
    """Where iteration t is in the rounds: its round, and its number there; ``last``: another round follows it."""

    round: int
    number: int
    last: bool
    shrink: float


def iterations(stages: Sequence[Stage]) -> list[Iteration]:
    return [
        Iteration(r, number, number == stage.steps - 1, stage.shrink)
        for stage in stages
        for r in stage.rounds
        for number in range(stage.steps)
    ]


def fmgda(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    gamma: float,
    lam: float,
    rates: Rates,
    weights: Sequence[float] | None = None,
    lost: Collection[tuple[int, int]] = (),
    silent: Collection[tuple[int, int]] = (),
) -> list[Point]:
    """FMGDA; ``lost`` and ``silent`` hold (round, client) where a memory is gone, or a client takes no part.

    A client's memory is good for the round that follows the one it is from, and for no other.
    """
    everybody = list(range(game.clients))
    weights = weights or [1.0] * game.clients
    xs, ys = [x.copy() for _ in everybody], [y.copy() for _ in everybody]
    us, vs = [np.zeros_like(x) for _ in everybody], [np.zeros_like(y) for _ in everybody]
    present = [k for k in everybody if (1, k) not in silent]
    for k in present:
        us[k], vs[k] = game.gradients(k, x, y, 1, 0)
    history = []
    for t, now in enumerate(iterations(stages)):
        old_x, old_y = [x.copy() for x in xs], [y.copy() for y in ys]
        for k in present:
            xs[k] = xs[k] - gamma * rates.eta(t) * now.shrink * us[k]
            ys[k] = game.feasible(ys[k] + lam * rates.eta(t) * now.shrink * vs[k])
        before = present
        if now.last:
            share = [weights[k] for k in present]
            x, y, u, v = (weighted([values[k] for k in present], share) for values in (xs, ys, us, vs))
            xs, ys, us, vs = ([value.copy() for _ in everybody] for value in (x, y, u, v))
            history.append((x, y))
            present = [k for k in everybody if (now.round + 1, k) not in silent]
        for k in present:
            if now.last:
                batch = (now.round + 1, 0)
                if (now.round + 1, k) in lost or k not in before:
                    old_x[k], old_y[k] = xs[k], ys[k]
            else:
                batch = (now.round, now.number + 1)
            here_x, here_y = game.gradients(k, xs[k], ys[k], *batch)
            there_x, there_y = game.gradients(k, old_x[k], old_y[k], *batch)
            us[k] = here_x + (1 - rates.alpha(t)) * (us[k] - there_x)
            vs[k] = here_y + (1 - rates.beta(t)) * (vs[k] - there_y)
    return history


def fgda(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    gamma: float,
    lam: float,
    rates: Rates,
    weights: Sequence[float] | None = None,
    matrix: str = "identity",
    rho: float = 1.0,
    varrho: float = 1.0,
) -> list[Point]:
    """FGDA, and with ``matrix`` adam or belief AdaFGDA."""
    everybody = range(game.clients)
    weights = weights or [1.0] * game.clients
    xs, ys = [x.copy() for _ in everybody], [y.copy() for _ in everybody]
    first = [game.gradients(k, x, y, 1, 0) for k in everybody]
    us, vs = [by_x for by_x, _ in first], [by_y for _, by_y in first]
    a, b = np.zeros_like(x), np.zeros_like(y)
    last_u, last_v = np.zeros_like(x), np.zeros_like(y)  # averages of the synchronisation before
    history = []
    for t, now in enumerate(iterations(stages)):
        for k in everybody:
            divide_x = 1.0 if matrix == "identity" else np.sqrt(a) + rho
            divide_y = 1.0 if matrix == "identity" else np.sqrt(b) + rho
            new_x = xs[k] - gamma * rates.eta(t) * now.shrink * us[k] / divide_x
            new_y = game.feasible(ys[k] + lam * rates.eta(t) * now.shrink * vs[k] / divide_y)
            # The first round has drawn one batch more, for the estimators to start with.
            batch = (now.round, now.number + (1 if now.round == 1 else 0))
            here_x, here_y = game.gradients(k, new_x, new_y, *batch)
            there_x, there_y = game.gradients(k, xs[k], ys[k], *batch)
            us[k] = here_x + (1 - rates.alpha(t)) * (us[k] - there_x)
            vs[k] = here_y + (1 - rates.beta(t)) * (vs[k] - there_y)
            xs[k], ys[k] = new_x, new_y
        if now.last:  # the next iteration begins with a synchronisation
            x, y, u, v = (weighted(values, weights) for values in (xs, ys, us, vs))
            xs, ys, us, vs = ([value.copy() for _ in everybody] for value in (x, y, u, v))
            history.append((x, y))
            change_x, change_y = (u - last_u, v - last_v) if matrix == "belief" else (u, v)
            a = varrho * a + (1 - varrho) * change_x * change_x
            b = varrho * b + (1 - varrho) * change_y * change_y
            last_u, last_v = u, v
    return history
