"""The conditional methods as their pseudo-code is printed, and an objective for them; NumPy, float64, by hand.

Nothing here is shared with the product. Every simulation is one loop over iterations with all clients side by side, and
returns the server's model after each round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from tests.reference.algorithms import weighted
from tests.reference.games import Rows, Vector


class CompositionGame:
    """Client k minimises the mean over ξ of ½ Σ_c w_ξc (G_c - t_ξc)², G = mean over η of g_η(x), a vector of three.

    g_η(x) = M_η x + ½ ‖x‖² v_η. A batch is of b outer samples ξ with m inner samples η each, given by (client, round,
    step) and the number b, so that another program can draw the same.
    """

    def __init__(self, clients: int = 4, seed: int = 0, outer: int = 3, inner: int = 4) -> None:
        random = np.random.default_rng(seed)
        self.clients, self.seed, self.outer, self.inner = clients, seed, outer, inner
        self.primal, self.size = 5, 3
        # Of different scale and place at each client: the clients disagree.
        self.matrices = [random.normal(0.1 * k, 0.4, (20, self.size, self.primal)) for k in range(clients)]
        self.curves = [random.normal(0, 0.3, (20, self.size)) for _ in range(clients)]
        self.targets = [random.normal(k - 1, 1.0, (12, self.size)) for k in range(clients)]
        self.scales = [random.uniform(0.5, 1.5, (12, self.size)) for _ in range(clients)]
        self.x = random.normal(0, 1, self.primal)

    def rows(self, client: int, round: int, step: int, outer: int) -> tuple[Rows, Rows]:
        """Return which ξ, shape (b,), and which η, shape (b, m), make up a batch."""
        random = np.random.default_rng([self.seed, client, round, step, outer])
        return random.integers(0, 12, outer), random.integers(0, 20, (outer, self.inner))

    def value(self, client: int, x: Vector, eta: int) -> Vector:
        """Return g_η(x)."""
        return np.asarray(self.matrices[client][eta] @ x + (x @ x) / 2 * self.curves[client][eta])

    def slopes(self, client: int, x: Vector, eta: int) -> Vector:
        """Return the Jacobian of g_η."""
        return np.asarray(self.matrices[client][eta] + np.outer(self.curves[client][eta], x))

    def outer_gradient(self, client: int, s: Vector, xi: int) -> Vector:
        """Return ∇f_ξ(s)."""
        return np.asarray(self.scales[client][xi] * (s - self.targets[client][xi]))

    def gradient(self, client: int, x: Vector, round: int, step: int, outer: int) -> Vector:
        """Return the gradient of mean over ξ of f_ξ(mean over η of g_η(x))."""
        chosen, views = self.rows(client, round, step, outer)
        total = np.zeros_like(x)
        for xi, etas in zip(chosen, views, strict=True):
            inside = np.mean([self.value(client, x, eta) for eta in etas], axis=0)
            slopes = np.mean([self.slopes(client, x, eta) for eta in etas], axis=0)
            total += slopes.T @ self.outer_gradient(client, inside, xi)
        return np.asarray(total / outer)

    def inside(self, client: int, x: Vector, round: int, step: int) -> Vector:
        """Return the mean of g over all η of a batch."""
        etas = self.rows(client, round, step, self.outer)[1].ravel()
        return np.asarray(np.mean([self.value(client, x, eta) for eta in etas], axis=0))

    def composed(self, client: int, x: Vector, s: Vector, round: int, step: int) -> Vector:
        """Return ∇g(x; η)ᵀ ∇f(s; ξ), each factor a mean over the batch."""
        chosen, views = self.rows(client, round, step, self.outer)
        slopes = np.mean([self.slopes(client, x, eta) for eta in views.ravel()], axis=0)
        return np.asarray(slopes.T @ np.mean([self.outer_gradient(client, s, xi) for xi in chosen], axis=0))


Participants = Sequence[Collection[int]] | None


def fcsg_m(
    game: CompositionGame,
    rounds: int,
    steps: int,
    alpha: float,
    beta: float,
    weights: Sequence[float],
    participants: Participants = None,
    shrink: Callable[[int], float] = lambda r: 1.0,
    first: int = 0,
) -> list[Vector]:
    """FCSG-M; with β = 1 FCSG. ``shrink`` of a round multiplies α; ``first`` outer samples start u, 0: a mini-batch."""
    x, u, history = game.x, None, []
    for r in range(1, rounds + 1):
        chosen = range(game.clients) if participants is None else sorted(participants[r - 1])
        xs, us = dict.fromkeys(chosen, x), dict.fromkeys(chosen, u)
        for t in range(steps):
            for k in chosen:
                before = us[k]
                fresh = game.gradient(k, xs[k], r, t, first if r == 1 and t == 0 and first else game.outer)
                us[k] = fresh if before is None else (1 - beta) * before + beta * fresh
                xs[k] = xs[k] - alpha * shrink(r) * us[k]
        share = [weights[k] for k in chosen]
        x, u = weighted([xs[k] for k in chosen], share), weighted([us[k] for k in chosen], share)
        history.append(x)
    return history


def acc_fcsg_m(
    game: CompositionGame,
    rounds: int,
    steps: int,
    alpha: float,
    beta: float,
    first: int,
    weights: Sequence[float],
    lost: Collection[tuple[int, int]] = (),
    eta: Callable[[int], float] | None = None,
    c: float = 0.0,
) -> list[Vector]:
    """Acc-FCSG-M: step, average where t is a multiple of q, then the new estimator from the client's own last point.

    ``eta`` of an iteration multiplies α, and then the weight is c η² (at most 1) in place of β. ``lost`` holds (round,
    client): there the client forgot its last point, and takes the received one.
    """
    everybody = range(game.clients)
    xs = [game.x for _ in everybody]
    us = [game.gradient(k, xs[k], 1, 0, first) for k in everybody]
    history = []
    for t in range(rounds * steps):
        rate = 1.0 if eta is None else eta(t)
        weight = beta if eta is None else min(1.0, c * rate**2)
        last = xs
        xs = [xs[k] - alpha * rate * us[k] for k in everybody]
        r, step = divmod(t + 1, steps)
        if step == 0:
            xs = [weighted(xs, weights)] * game.clients
            us = [weighted(us, weights)] * game.clients
            history.append(xs[0])
            last = [xs[k] if (r + 1, k) in lost else last[k] for k in everybody]
        us = [
            game.gradient(k, xs[k], r + 1, step, game.outer)
            + (1 - weight) * (us[k] - game.gradient(k, last[k], r + 1, step, game.outer))
            for k in everybody
        ]
    return history


def local_scgd(
    game: CompositionGame,
    rounds: int,
    steps: int,
    alpha: float,
    beta: float,
    weights: Sequence[float],
    participants: Participants = None,
    lost: Collection[tuple[int, int]] = (),
) -> list[Vector]:
    """Local-SCGD: each client keeps its inner state; ``lost`` holds (round, client) where it is gone."""
    x, history = game.x, []
    states: dict[int, Vector] = {}
    for r in range(1, rounds + 1):
        chosen = range(game.clients) if participants is None else sorted(participants[r - 1])
        answers = []
        for k in chosen:
            if (r, k) in lost:
                states.pop(k, None)
            xk = x
            for t in range(steps):
                inside = game.inside(k, xk, r, t)
                states[k] = (1 - beta) * states[k] + beta * inside if k in states else inside
                xk = xk - alpha * game.composed(k, xk, states[k], r, t)
            answers.append(xk)
        x = weighted(answers, [weights[k] for k in chosen])
        history.append(x)
    return history


def local_scgdm(
    game: CompositionGame,
    rounds: int,
    steps: int,
    alpha: float,
    beta: float,
    mu: float,
    weights: Sequence[float],
    participants: Participants = None,
) -> list[Vector]:
    """Local-SCGDM: inner state and direction are averaged like x."""
    history: list[Vector] = []
    x, common = game.x, None
    for r in range(1, rounds + 1):
        chosen = range(game.clients) if participants is None else sorted(participants[r - 1])
        answers = []
        for k in chosen:
            xk, now = x, common
            for t in range(steps):
                inside = game.inside(k, xk, r, t)
                s = inside if now is None else (1 - beta) * now[0] + beta * inside
                fresh = game.composed(k, xk, s, r, t)
                u = fresh if now is None else (1 - mu) * now[1] + mu * fresh
                now = s, u
                xk = xk - alpha * u
            assert now is not None
            answers.append((xk, *now))
        share = [weights[k] for k in chosen]
        x, s, u = (weighted(list(vectors), share) for vectors in zip(*answers, strict=True))
        common = s, u
        history.append(x)
    return history
