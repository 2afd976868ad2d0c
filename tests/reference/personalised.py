"""The personalised and decentralised methods as their pseudo-code is printed, in NumPy and float64, by hand.

Nothing here is shared with the product. Each function returns, for each round, what each client's own model is when the
round is over (after mixing or averaging): a list of (x, y).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from tests.reference.algorithms import Point, Stage, everyone, weighted
from tests.reference.games import Game, RegressionGame, Vector

Models = list[Point]
Mask = np.ndarray
Layer = tuple[slice, tuple[int, ...]]
Gradients = Callable[[Vector, Vector], Point]


class Sgd(NamedTuple):
    """Step sizes that fall from round to round, clipping, weight decay, and a heavy ball from rest in each round."""

    decay: float = 1.0
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip: float = 0.0

    def clipped(self, g: Vector) -> Vector:
        norm = math.sqrt(sum(float(entry) ** 2 for entry in g))
        return g * (self.clip / norm) if 0 < self.clip < norm else g

    def rate(self, stage: Stage, r: int) -> float:
        rate = stage.shrink
        for _ in range(1, r):
            rate *= self.decay
        return rate

    def velocity(self, v: Vector, g: Vector, x: Vector) -> Vector:
        return self.momentum * v + g + self.weight_decay * x


PLAIN = Sgd()


def metropolis(edges: Collection[tuple[int, int]], clients: int) -> np.ndarray:
    """Return W, entry by entry."""
    degree = [sum(k in edge for edge in edges) for k in range(clients)]
    w = np.zeros((clients, clients))
    for i, j in edges:
        w[i, j] = w[j, i] = 1 / (1 + max(degree[i], degree[j]))
    for i in range(clients):
        w[i, i] = 1 - w[i].sum()
    return w


def mixed(w: np.ndarray, vectors: Sequence[Vector]) -> list[Vector]:
    """Return Σ_j W_ij x_j for each i."""
    return [np.sum([w[i, j] * vectors[j] for j in range(len(vectors))], axis=0) for i in range(len(vectors))]


def d_psgd(
    game: Game,
    x: Vector,
    y: Vector,
    stages: Sequence[Stage],
    lr: float,
    lr_dual: float,
    w: Callable[[int], np.ndarray],
    sgd: Sgd = PLAIN,
) -> list[Models]:
    """``w`` gives W of the mixing after each round."""
    xs, ys, history = [x] * game.clients, [y] * game.clients, []
    for stage in stages:
        for r in stage.rounds:
            rate = sgd.rate(stage, r)
            for k in range(game.clients):
                v = 0 * x
                for t in range(stage.steps):
                    gx, gy = game.gradients(k, xs[k], ys[k], r, t)
                    v = sgd.velocity(v, sgd.clipped(gx), xs[k])
                    xs[k] = xs[k] - lr * rate * v
                    ys[k] = game.feasible(ys[k] + lr_dual * rate * gy)
            xs = mixed(w(r), xs)
            history.append(list(zip(xs, ys, strict=True)))
    return history


def gradients_of(game: Game, k: int, r: int, first: int, count: int, epochs: bool) -> list[Gradients]:
    """Return those of so many steps, from number ``first`` on, or of the batches of as many passes over client k."""
    if not epochs:
        return [lambda x, y, t=t: game.gradients(k, x, y, r, t) for t in range(first, first + count)]
    assert isinstance(game, RegressionGame), "the others have no rows to pass over"
    batches = [rows for e in range(first, first + count) for rows in game.epoch(k, r, e)]
    return [lambda x, y, rows=rows: game.gradients_on(rows, k, x, y) for rows in batches]


def head_and_body(
    game: Game,
    body: Vector,
    heads: Sequence[Vector],
    y: Vector,
    stages: Sequence[Stage],
    lrs: tuple[float, float, float],
    body_steps: int,
    combine: Callable[[list[Vector], list[int]], list[Vector]],
    sgd: Sgd = PLAIN,
    participants: Sequence[Collection[int]] | None = None,
    epochs: tuple[bool, bool] = (False, False),
) -> list[Models]:
    """DePRL and FedRep: they differ in ``combine``, from the bodies of those who took part to everybody's next one.

    ``epochs`` says whether steps on the head, and on the body, are counted in passes over the client's rows.
    """
    alpha, beta, eta = lrs
    split = len(body)
    bodies, heads, ys = [body] * game.clients, list(heads), [y] * game.clients
    history = []
    for stage in stages:
        for r in stage.rounds:
            rate = sgd.rate(stage, r)
            trained, chosen = [], everyone(game, r, participants)
            for k in chosen:
                body, v, u = bodies[k], 0 * heads[k], 0 * bodies[k]
                for gradients in gradients_of(game, k, r, 0, stage.steps, epochs[0]):
                    gx, gy = gradients(np.concatenate([body, heads[k]]), ys[k])
                    v = sgd.velocity(v, sgd.clipped(gx)[split:], heads[k])
                    heads[k] = heads[k] - alpha * rate * v
                    ys[k] = game.feasible(ys[k] + eta * rate * gy)
                for gradients in gradients_of(game, k, r, stage.steps, body_steps, epochs[1]):
                    gx, _ = gradients(np.concatenate([body, heads[k]]), ys[k])
                    u = sgd.velocity(u, sgd.clipped(gx)[:split], body)
                    body = body - beta * rate * u
                trained.append(body)
            bodies = combine(trained, chosen)
            history.append([(np.concatenate([bodies[k], heads[k]]), ys[k]) for k in range(game.clients)])
    return history


def ditto(
    game: Game,
    x: Vector,
    y: Vector,
    stages: Sequence[Stage],
    lr: float,
    lr_dual: float,
    lam: float,
    weights: Sequence[float],
    participants: Sequence[Collection[int]] | None = None,
    sgd: Sgd = PLAIN,
) -> tuple[list[Models], list[Point]]:
    """Return each client's own model, and the common one; a client that never took part has the common one."""
    w, yw, own = x, y, dict[int, Point]()
    history, common = [], []
    for stage in stages:
        for r in stage.rounds:
            lr_now, dual_now = lr * sgd.rate(stage, r), lr_dual * sgd.rate(stage, r)
            answers, chosen = [], everyone(game, r, participants)
            for k in chosen:
                u, yu = w, yw
                v, z = own.get(k, (w, yw))
                speed_u, speed_v = 0 * u, 0 * v
                for t in range(stage.steps):
                    gu, gy = game.gradients(k, u, yu, r, t)
                    gv, gz = game.gradients(k, v, z, r, t)
                    speed_u = sgd.velocity(speed_u, sgd.clipped(gu), u)
                    speed_v = sgd.velocity(speed_v, sgd.clipped(gv) + lam * (v - w), v)
                    u, yu = u - lr_now * speed_u, game.feasible(yu + dual_now * gy)
                    v, z = v - lr_now * speed_v, game.feasible(z + dual_now * gz)
                own[k] = v, z
                answers.append((u, yu))
            share = [weights[k] for k in chosen]
            w, yw = weighted([u for u, _ in answers], share), weighted([yu for _, yu in answers], share)
            history.append([own.get(k, (w, yw)) for k in range(game.clients)])
            common.append((w, yw))
    return history, common


def dispfl(
    game: Game,
    x: Vector,
    y: Vector,
    stages: Sequence[Stage],
    lr: float,
    lr_dual: float,
    prune: float,
    layers: Sequence[Layer],
    masks: Sequence[Mask],
    w: np.ndarray,
    sgd: Sgd = PLAIN,
) -> list[Models]:
    """``masks`` are the clients' first ones, of True and False."""
    rounds = stages[-1].rounds[-1]
    masks = [mask.copy() for mask in masks]
    xs, ys, history = [x * mask for mask in masks], [y] * game.clients, []
    for stage in stages:
        for r in stage.rounds:
            step = sgd.rate(stage, r)
            for k in range(game.clients):
                v = 0 * x
                for t in range(stage.steps):
                    gx, gy = game.gradients(k, xs[k], ys[k], r, t)
                    v = sgd.velocity(v, sgd.clipped(gx), xs[k])
                    xs[k] = xs[k] - lr * step * v * masks[k]
                    ys[k] = game.feasible(ys[k] + lr_dual * step * gy)
                gx, _ = game.gradients(k, xs[k], ys[k], r, stage.steps)
                gx = sgd.clipped(gx)
                rate = prune / 2 * (1 + math.cos(math.pi * (r - 1) / rounds))
                for place, shape in layers:
                    where = list(range(place.start, place.stop))
                    active = [i for i in where if masks[k][i]]
                    if len(shape) < 2 or len(active) == len(where):
                        continue
                    count = math.ceil(rate * len(active))
                    for i in sorted(active, key=lambda i: abs(xs[k][i]))[:count]:
                        masks[k][i] = False
                    idle = [i for i in where if not masks[k][i]]
                    for i in sorted(idle, key=lambda i: -abs(gx[i]))[:count]:
                        masks[k][i] = True
                xs[k] = xs[k] * masks[k]
            after = []
            for i in range(game.clients):
                z = np.zeros_like(x)
                for c in range(len(x)):
                    if masks[i][c]:
                        mass = sum(w[i, j] for j in range(game.clients) if masks[j][c])
                        z[c] = sum(w[i, j] * xs[j][c] for j in range(game.clients) if masks[j][c]) / mass
                after.append(z)
            xs = after
            history.append(list(zip(xs, ys, strict=True)))
    return history


class SoftmaxGame:
    """A network of one hidden layer with ReLU and a linear head, on given batches; gradients by hand.

    x is (A (h, f), a (h), B (c, h), b (c)), flat. Client k has samples of a few of the c classes.
    """

    features, hidden, classes, batch = 4, 3, 3, 5

    def __init__(self, clients: int = 4, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.clients, self.seed = clients, seed
        self.labels = [np.repeat(np.arange(3), n) for n in ([20, 4, 0], [3, 3, 14], [8, 8, 8], [0, 6, 9])[:clients]]
        self.inputs = [random.normal(0, 1, (len(y), self.features)) + y[:, None] for y in self.labels]
        self.split = self.hidden * (self.features + 1)
        self.x = random.normal(0, 0.7, self.split + self.classes * (self.hidden + 1))

    def rows(self, client: int, round: int, step: int) -> np.ndarray:
        random = np.random.default_rng([self.seed, client, round, step])
        return random.choice(len(self.labels[client]), self.batch, replace=False)

    def gradient(self, client: int, x: Vector, round: int, step: int, balanced: bool) -> Vector:
        rows = self.rows(client, round, step)
        inputs, labels = self.inputs[client][rows], self.labels[client][rows]
        a, b = self.hidden * self.features, self.split + self.classes * self.hidden
        first, second = x[:a].reshape(self.hidden, -1), x[self.split : b].reshape(self.classes, -1)
        z = inputs @ first.T + x[a : self.split]
        h = np.maximum(z, 0)
        logits = h @ second.T + x[b:]
        mass = np.exp(logits)
        if balanced:
            mass = mass * np.bincount(self.labels[client], minlength=self.classes)
        by_logits = (mass / mass.sum(1, keepdims=True) - np.eye(self.classes)[labels]) / self.batch
        by_z = (by_logits @ second) * (z > 0)
        parts = [by_z.T @ inputs, by_z.sum(0), by_logits.T @ h, by_logits.sum(0)]
        return np.concatenate([part.ravel() for part in parts])


def fedrod(
    game: SoftmaxGame,
    stages: Sequence[Stage],
    lr: float,
    lr_head: float,
    weights: Sequence[float],
    participants: Sequence[Collection[int]] | None = None,
    sgd: Sgd = PLAIN,
) -> list[list[Vector]]:
    """Return, for each round, each client's own predictor: the generic model with both heads added up."""
    x, split = game.x, game.split
    thetas = [np.zeros_like(x[split:])] * game.clients
    history = []
    for stage in stages:
        for r in stage.rounds:
            answers, rate = [], sgd.rate(stage, r)
            chosen = sorted(range(game.clients) if participants is None else participants[r - 1])
            for k in chosen:
                u, theta = x, thetas[k]
                v, speed = 0 * u, 0 * theta
                for t in range(stage.steps):
                    both = np.concatenate([u[:split], u[split:] + theta])
                    generic, plain = game.gradient(k, u, r, t, True), game.gradient(k, both, r, t, False)
                    generic, plain = sgd.clipped(generic), sgd.clipped(plain)
                    v, speed = sgd.velocity(v, generic, u), sgd.velocity(speed, plain[split:], theta)
                    u, theta = u - lr * rate * v, theta - lr_head * rate * speed
                thetas[k] = theta
                answers.append(u)
            x = weighted(answers, [weights[k] for k in chosen])
            history.append([np.concatenate([x[:split], x[split:] + theta]) for theta in thetas])
    return history
