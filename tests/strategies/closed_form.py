"""A closed-form objective for every kind of problem, so that a property can be tested of every algorithm there is."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from edelweiss.federation import Differences, FederatedStrategy
from edelweiss.problems.saddle import saddle_coefficients
from edelweiss.strategies import ALGORITHMS
from tests.problems.example import given_saddle
from tests.strategies.halves import Arrays, OpenOracle, parted, saddle_oracles

STEPS = 0.02  # all step sizes


class Bowl(Differences):
    """f_k = ½ ‖x - b_k‖², also as f(g(x)) with g(x) = x; no noise. The mean's minimum is the mean of the b_k."""

    def __init__(self, center: Tensor) -> None:
        self.center = center

    def draw(self, size: int | None = None) -> None:
        return None

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: None = None) -> tuple[Tensor, None]:
        return x - self.center, None

    def inner(self, x: Tensor, batch: None) -> Tensor:
        return x.clone()

    def compositional_gradient(self, x: Tensor, s: Tensor, batch: None) -> Tensor:
        return s - self.center

    def dual_terms(self, x: Tensor, batch: None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def project(self, y: Tensor) -> Tensor:
        return y


def objective(algorithm: type[FederatedStrategy], sites: int, dimension: int = 5) -> tuple[Arrays, OpenOracle, Arrays]:
    """Return a start, oracles and the optimum, float64: the saddle problem for minimax algorithms, else a bowl."""
    slopes, offsets = saddle_coefficients(sites, dimension, 3.0, 0)
    problem = given_saddle(slopes, offsets)
    start = problem.initial()
    layers = ((slice(0, 4), (2, 2)), (slice(4, dimension), (dimension - 4,)))
    if "minimax" in algorithm.solves:
        oracles = parted(saddle_oracles(slopes, offsets), start, 3, layers)
        return start, oracles, {"x": problem.x_star, "y": problem.y_star}
    start = {"x": start["x"]}
    centers = [torch.from_numpy(np.asarray(b)) for b in offsets]
    oracles = parted(lambda site, server_round: Bowl(centers[site]), start, 3, layers)
    return start, oracles, {"x": torch.stack(centers).mean(0)}


def build(name: str, **others: object) -> FederatedStrategy:
    """Build an algorithm with small steps; its other fields keep their defaults."""
    algorithm = ALGORITHMS[name]
    declared = {field.name for field in fields(algorithm)}
    small = {field: STEPS for field in declared if field == "lr" or field.startswith("lr_")}
    if "gamma" in declared:
        small["gamma"] = 0.0  # without the proximal term
    if name == "feddyn":
        small["alpha"] = 5.0  # small steps want a large one
    if "rho" in declared:
        small["rho"] = 1.0  # the adaptive step is lr / rho in the end
    if "decay" in declared:
        small["decay"] = 1.0  # what is lost late in a run comes back only with steps that do not fade
    if "prune" in declared:
        small["prune"] = 0.0  # and only within masks that do not move
    return algorithm(**(small | others))  # type: ignore[arg-type]
