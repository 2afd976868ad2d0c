"""SAGDA, FedGDA-GT, CDMA and FEDNEST as their pseudo-code is printed, in float64; nothing is shared with the product.

A round has several exchanges, and each has batches of its own: exchange e of round r (both from 1) with E exchanges per
round draws those that the game calls round (r - 1) E + e. Every function returns (x, y) after each round.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tests.reference.algorithms import Point, Stage, everyone, weighted
from tests.reference.games import Game, Vector


def sagda(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    eta_x: float,
    eta_y: float,
    eta_global: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
    lost: Collection[tuple[int, int]] = (),
) -> list[Point]:
    """SAGDA; a client in ``lost``, a set of (round, client), takes its steps without a correction."""
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            share = [weights[k] for k in chosen]
            own = {k: game.gradients(k, x, y, 2 * r - 1, 0) for k in chosen}
            v_x = weighted([own[k][0] for k in chosen], share)
            v_y = weighted([own[k][1] for k in chosen], share)
            moved_x, moved_y = [], []
            for k in chosen:
                u_x, u_y = (v_x, v_y) if (r, k) in lost else own[k]
                xk, yk = x.copy(), y.copy()
                for t in range(stage.steps):
                    by_x, by_y = game.gradients(k, xk, yk, 2 * r, t)
                    xk = xk - eta_x * stage.shrink * (by_x - u_x + v_x)
                    yk = game.feasible(yk + eta_y * stage.shrink * (by_y - u_y + v_y))
                moved_x.append(xk - x)
                moved_y.append(yk - y)
            x = x + eta_global * weighted(moved_x, share)
            y = y + eta_global * weighted(moved_y, share)
            history.append((x, y))
    return history


def fedgda_gt(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    eta_x: float,
    eta_y: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
    lost: Collection[tuple[int, int]] = (),
) -> list[Point]:
    """FedGDA-GT; a client in ``lost``, a set of (round, client), sends its gradient and takes no steps."""
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            own = {k: game.full_gradients(k, x, y) for k in chosen}
            mean_x, mean_y = (weighted([own[k][part] for k in chosen], [weights[k] for k in chosen]) for part in (0, 1))
            stepping = [k for k in chosen if (r, k) not in lost]
            answers_x, answers_y = [], []
            for k in stepping:
                xk, yk = x.copy(), y.copy()
                for _ in range(stage.steps):
                    by_x, by_y = game.full_gradients(k, xk, yk)
                    xk = xk - eta_x * stage.shrink * (by_x - own[k][0] + mean_x)
                    yk = game.feasible(yk + eta_y * stage.shrink * (by_y - own[k][1] + mean_y))
                answers_x.append(xk)
                answers_y.append(yk)
            if stepping:
                share = [weights[k] for k in stepping]
                x, y = weighted(answers_x, share), weighted(answers_y, share)
            history.append((x, y))
    return history


def cdma(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    eta_x: float,
    eta_y: float,
    alpha: float,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Point]:
    """CDMA; each client forms its own u_t from the server's u_{t-1}, and the server averages them."""
    weights = weights or [1.0] * game.clients
    history: list[Point] = []
    u = v = before = None
    for stage in stages:
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            share = [weights[k] for k in chosen]
            directions_x, directions_y = [], []
            for k in chosen:
                by_x, by_y = game.gradients(k, x, y, 2 * r - 1, 0)
                if before is not None:
                    old_x, old_y = game.gradients(k, *before, 2 * r - 1, 0)
                    by_x = by_x + (1 - alpha) * (u - old_x)
                    by_y = by_y + (1 - alpha) * (v - old_y)
                directions_x.append(by_x)
                directions_y.append(by_y)
            u, v = weighted(directions_x, share), weighted(directions_y, share)
            answers_x, answers_y = [], []
            for k in chosen:
                xk, yk = x.copy(), y.copy()
                for t in range(stage.steps):
                    # In the first step the gradients are equal, and the product draws its first batch in the second.
                    batch = max(0, t - 1)
                    by_x, by_y = game.gradients(k, xk, yk, 2 * r, batch)
                    at_x, at_y = game.gradients(k, x, y, 2 * r, batch)
                    xk = xk - eta_x * stage.shrink * (by_x - at_x + u)
                    yk = game.feasible(yk + eta_y * stage.shrink * (by_y - at_y + v))
                answers_x.append(xk)
                answers_y.append(yk)
            before = (x, y)
            x, y = weighted(answers_x, share), weighted(answers_y, share)
            history.append((x, y))
    return history


def fednest(
    game: Game,
    x: Vector,
    y: Vector,
    stages: list[Stage],
    alpha: float,
    beta: float,
    inner: int = 1,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
) -> list[Point]:
    """FEDNEST: FedInn, which is ``inner`` times FedSVRG on y, then FedSVRG on x."""
    weights = weights or [1.0] * game.clients
    history = []
    for stage in stages:
        for r in stage.rounds:
            chosen = everyone(game, r, participants)
            share = [weights[k] for k in chosen]
            exchange = (r - 1) * 2 * (inner + 1)
            for context in range(inner + 1):
                part = 1 if context < inner else 0  # which gradient: by y, and at last by x
                step = -alpha * stage.shrink if part == 0 else beta * stage.shrink
                anchor = (x, y)
                exchange += 2
                h = weighted([game.gradients(k, *anchor, exchange - 1, 0)[part] for k in chosen], share)
                answers = []
                for k in chosen:
                    point = [x.copy(), y.copy()]
                    for t in range(stage.steps):
                        batch = max(0, t - 1)  # as in `cdma`
                        now = game.gradients(k, point[0], point[1], exchange, batch)[part]
                        then = game.gradients(k, *anchor, exchange, batch)[part]
                        point[part] = point[part] + step * (now - then + h)
                        point[1] = game.feasible(point[1])
                    answers.append(point[part])
                mean = weighted(answers, share)
                x, y = (mean, y) if part == 0 else (x, mean)
            history.append((x, y))
    return history
