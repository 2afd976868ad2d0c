"""Objectives of the simulations, in NumPy and float64, with gradients written out by hand.

A game has ``clients``; ``gradients(k, x, y, round, step)`` are those of client k, on the mini-batch of that step,
``full_gradients(k, x, y)`` those on all of its data, and ``feasible(y)`` is the projection P.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Rows = NDArray[np.int64]


class Game(Protocol):
    """What the simulations ask of an objective."""

    clients: int

    def gradients(self, client: int, x: Vector, y: Vector, round: int, step: int) -> tuple[Vector, Vector]:
        """Return the gradients by x and by y."""

    def full_gradients(self, client: int, x: Vector, y: Vector) -> tuple[Vector, Vector]:
        """Return the gradients by x and by y over all of the client's data."""

    def feasible(self, y: Vector) -> Vector:
        """Return P(y)."""


class SaddleGame:
    """f_k = τ/2 ‖x‖² - ½ ‖y‖² + b_kᵀy - t_k yᵀx with τ = 10; nothing random."""

    def __init__(self, slopes: Vector, offsets: Vector) -> None:
        self.slopes, self.offsets = slopes, offsets
        self.clients = len(slopes)

    def gradients(self, client: int, x: Vector, y: Vector, round: int, step: int) -> tuple[Vector, Vector]:
        by_x = np.array([10.0 * x[i] - self.slopes[client] * y[i] for i in range(len(x))])
        by_y = np.array([-y[i] + self.offsets[client][i] - self.slopes[client] * x[i] for i in range(len(y))])
        return by_x, by_y

    def full_gradients(self, client: int, x: Vector, y: Vector) -> tuple[Vector, Vector]:
        return self.gradients(client, x, y, 0, 0)

    def feasible(self, y: Vector) -> Vector:
        return y


class RegressionGame:
    """A stochastic game: least squares in x against an adversary who reweighs the residuals.

    Row i of client k is (features, target, couplings); on a batch B of rows

        f_k(x, y; B) = mean over B of ½ r_i² + (couplings_iᵀ y) r_i, minus ½ ‖y‖²,  r_i = features_iᵀ x - target_i

    Which rows are in the batch of (client, round, step) is given by `rows`, so that another program can draw them too.
    """

    def __init__(self, clients: int = 4, seed: int = 0, clip: bool = False, primal: int = 5) -> None:
        random = np.random.default_rng(seed)
        self.clients, self.seed, self.clip = clients, seed, clip
        self.size, self.batch, self.primal, self.dual = 30, 6, primal, 2
        # Features, couplings and targets of different scale and place at each client: the clients disagree.
        self.features = [random.normal(0.3 * k, 0.6, (self.size, self.primal)) for k in range(clients)]
        self.targets = [random.normal(float(k - 1), 1.0, self.size) for k in range(clients)]
        self.couplings = [random.normal(0.4 * (-1) ** k, 0.5, (self.size, self.dual)) for k in range(clients)]
        self.x = random.normal(0, 1, self.primal)
        self.y = random.normal(0, 0.3, self.dual)
        self._drawn: dict[tuple[int, int, int], Rows] = {}

    def rows(self, client: int, round: int, step: int) -> Rows:
        """Return which rows make up a batch."""
        place = (client, round, step)
        if place not in self._drawn:
            self._drawn[place] = np.random.default_rng([self.seed, *place]).choice(self.size, self.batch, replace=False)
        return self._drawn[place]

    def epoch(self, client: int, round: int, step: int) -> list[Rows]:
        """Return the batches of a pass over all rows, in place of the batch of a step."""
        order = np.random.default_rng([self.seed, client, round, step, 1]).permutation(self.size)
        return np.split(order, self.size // self.batch)

    def gradients(self, client: int, x: Vector, y: Vector, round: int, step: int) -> tuple[Vector, Vector]:
        return self.gradients_on(self.rows(client, round, step), client, x, y)

    def full_gradients(self, client: int, x: Vector, y: Vector) -> tuple[Vector, Vector]:
        return self.gradients_on(np.arange(self.size), client, x, y)

    def gradients_on(self, batch: Rows, client: int, x: Vector, y: Vector) -> tuple[Vector, Vector]:
        features, couplings = self.features[client][batch], self.couplings[client][batch, : len(y)]
        residuals = features @ x - self.targets[client][batch]
        by_x = features.T @ (residuals + couplings @ y) / len(batch)
        by_y = couplings.T @ residuals / len(batch) - y
        return by_x, by_y

    def feasible(self, y: Vector) -> Vector:
        return np.maximum(y, 0.0) if self.clip else y
