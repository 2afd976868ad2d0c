"""Small networks, batches and samples that the tests of the problems share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from datasets import Samples
from problems import PROBLEMS, Task, build_problem
from problems.network import NetworkProblem

FEATURES = 4

WITH_DATA: list[dict[str, Any]] = [
    {"problem": "auc", "score": "sigmoid", "prior": 0.2},
    {"problem": "auc", "score": "identity", "prior": 0.7},
    {"problem": "auc-margin", "score": "sigmoid", "prior": 0.2, "margin": 1.0},
    {"problem": "auc-margin", "score": "identity", "prior": 0.05, "margin": 0.4},
    {"problem": "auc-margin", "score": "sigmoid", "prior": 0.5, "margin": 3.0},
    {"problem": "bce", "prior": 0.2},
    {"problem": "cross-entropy", "classes": 3},
    {"problem": "robust", "classes": 3, "radius": 1.0},
    {"problem": "robust", "classes": 2, "radius": 0.5, "robust_loss": "squared"},
    {"problem": "fair", "classes": 3, "shares": (0.5, 0.3, 0.2)},
]
"""Every problem with data, in every variant; `test_gradients` checks that none is forgotten."""


def name_of(variant: dict[str, Any]) -> str:
    """Name a variant in a test's identifier."""
    return "-".join(str(value) for value in variant.values())


def build(variant: dict[str, Any], model: str = "linear", dtype: torch.dtype = torch.float64) -> NetworkProblem:
    """Build a problem over a small network."""
    problem = build_problem(Task(**variant, model=model, hidden=3, shape=(FEATURES,), dtype=dtype, seed=1))
    assert isinstance(problem, NetworkProblem)
    return problem


def point(problem: NetworkProblem, seed: int) -> tuple[Tensor, Tensor | None]:
    """Return a random point; a dual is taken from the feasible set."""
    random = np.random.default_rng(seed)
    start = problem.initial()
    x = torch.from_numpy(random.normal(0, 0.7, len(start["x"]))).to(problem.dtype)
    if "y" not in start:
        return x, None
    return x, problem.project(torch.from_numpy(random.normal(0, 1, len(start["y"]))).to(problem.dtype))


def batch(seed: int, positives: int, negatives: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return inputs and labels, in random order."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat([1, 0], [positives, negatives]))
    inputs = random.normal(0, 1, (len(labels), FEATURES)).astype(np.float32)  # as data sets hold them
    return torch.from_numpy(inputs).to(dtype), torch.from_numpy(labels)


def samples(inputs: Tensor, labels: Tensor) -> Samples:
    """Make a batch a set of samples."""
    return Samples(inputs.float(), labels, torch.arange(len(labels)))


__all__ = ["FEATURES", "PROBLEMS", "WITH_DATA", "batch", "build", "name_of", "point", "samples"]
