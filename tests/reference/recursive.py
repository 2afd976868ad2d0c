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
    """η_t, and the weights of the fresh gradients by x and by y after the step of iteration t."""

    eta: Falling
    by_x: Falling
    by_y: Falling


def constant(by_x: float, by_y: float) -> Rates:
    return Rates(lambda t: 1.0, lambda t: by_x, lambda t: by_y)


def capped(eta: Falling, c_x: float, c_y: float) -> Rates:
    """Return η_t with weights c η_t², none above 1."""

    def weight(c: float) -> Falling:
        return lambda t: c * eta(t) ** 2 if c * eta(t) ** 2 < 1 else 1.0

    return Rates(eta, weight(c_x), weight(c_y))


def cube_root(clients: int, n: float, m: float, c_x: float, c_y: float) -> Rates:
    """Return η_t = n K^{1/3} / (m + t)^{1/3} with its weights (AdaFGDA, Theorem 1)."""
    return capped(lambda t: n * float(np.cbrt(clients)) / float(np.cbrt(m + t)), c_x, c_y)


def corollary_1(clients: int, n: float, q: int, c_x: float, c_y: float) -> Rates:
    """Return η_t = h / (e_t + t)^{1/3}, h = n K^{2/3}, e_t = max(3/2, 1728 q³ K² - t) (FMGDA, Corollary 1; n = 1/L)."""

    def eta(t: int) -> float:
        late = max(1.5, 1728 * q**3 * clients**2 - t)
        return n * float(np.cbrt(clients)) ** 2 / float(np.cbrt(late + t))

    return capped(eta, c_x, c_y)


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


def first_estimates(game: Game, client: int, x: Vector, y: Vector, q: int) -> Point:
    """Return the mean gradients over the first q mini-batches of the first round."""
    drawn = [game.gradients(client, x, y, 1, i) for i in range(q)]
    return sum(by_x for by_x, _ in drawn) / q, sum(by_y for _, by_y in drawn) / q


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
    drawn = stages[0].steps  # mini-batches for the first estimators, before those of the first round
    for k in present:
        us[k], vs[k] = first_estimates(game, k, x, y, drawn)
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
                batch = (now.round, now.number + (drawn if now.round == 1 else 1))
            here_x, here_y = game.gradients(k, xs[k], ys[k], *batch)
            there_x, there_y = game.gradients(k, old_x[k], old_y[k], *batch)
            us[k] = here_x + (1 - rates.by_x(t)) * (us[k] - there_x)
            vs[k] = here_y + (1 - rates.by_y(t)) * (vs[k] - there_y)
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
    lost: Collection[tuple[int, int]] = (),
) -> list[Point]:
    """FGDA, and with ``matrix`` adam or belief AdaFGDA; ``lost`` holds (round, client) where a memory is gone."""
    everybody = range(game.clients)
    weights = weights or [1.0] * game.clients
    xs, ys = [x.copy() for _ in everybody], [y.copy() for _ in everybody]
    drawn = stages[0].steps  # mini-batches for the first estimators, before those of the first round
    first = [first_estimates(game, k, x, y, drawn) for k in everybody]
    drawn = drawn if matrix == "identity" else 0  # AdaFGDA's are from an exchange of their own, with its own batches
    us, vs = [by_x for by_x, _ in first], [by_y for _, by_y in first]
    a, b = np.zeros_like(x), np.zeros_like(y)
    last_u, last_v = np.zeros_like(x), np.zeros_like(y)  # averages of the synchronisation before
    divide_x, divide_y = np.ones_like(x), np.ones_like(y)
    history = []
    for t, now in enumerate(iterations(stages)):
        if now.number == 0:  # the averages of this iteration; at t = 0 only the matrices are made of them
            u, v = (weighted(values, weights) for values in (us, vs))
            change_x, change_y = (u - last_u, v - last_v) if matrix == "belief" else (u, v)
            a = varrho * a + (1 - varrho) * change_x * change_x
            b = varrho * b + (1 - varrho) * change_y * change_y
            last_u, last_v = u, v
            if matrix != "identity":
                divide_x, divide_y = np.sqrt(a) + rho, np.sqrt(b) + rho
        together = now.number == 0 and t > 0
        for k in everybody:
            from_x, from_y, along_x, along_y = (x, y, u, v) if together else (xs[k], ys[k], us[k], vs[k])
            new_x = from_x - gamma * rates.eta(t) * now.shrink * along_x / divide_x
            new_y = game.feasible(from_y + lam * rates.eta(t) * now.shrink * along_y / divide_y)
            batch = (now.round, now.number + (drawn if now.round == 1 else 0))
            here_x, here_y = game.gradients(k, new_x, new_y, *batch)
            own = (xs[k], ys[k]) if (now.round, k) not in lost or not together else (x, y)
            there_x, there_y = game.gradients(k, *own, *batch)
            us[k] = here_x + (1 - rates.by_x(t)) * (along_x - there_x)
            vs[k] = here_y + (1 - rates.by_y(t)) * (along_y - there_y)
            xs[k], ys[k] = new_x, new_y
        if now.last:
            x, y = weighted(xs, weights), weighted(ys, weights)
            history.append((x, y))
    return history
