"""Patients of a private oracle, for tests: a problem, samples, and points to ask about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from edelweiss.datasets import DataSummary, Samples
from edelweiss.models import Architecture
from edelweiss.problems import PROBLEMS, Setting
from edelweiss.problems.network import NetworkProblem

TABLE, IMAGE = (6,), (1, 16, 16)


@dataclass(frozen=True, kw_only=True)
class Blanked(Samples):
    """Samples of which some count nothing, in place: their inputs are NaN, where missing values are already filled."""

    blank: Tensor  # which of them, shape (n,) bool

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and labels; see `Samples`."""
        inputs, labels = super().batch(index)
        inputs[self.blank[index]] = torch.nan
        return inputs, labels

    @classmethod
    def of(cls, samples: Samples, blank: Tensor) -> Blanked:
        """Blank some samples."""
        return cls(samples.inputs, samples.labels, samples.rows, blank=blank)


def problem_of(name: str, model: str = "mlp", shape: tuple[int, ...] = TABLE, **summary: Any) -> NetworkProblem:
    given = DataSummary(shape=shape, classes=2, **{"prior": 0.3, **summary})
    setting = Setting(data_summary=given, architecture=Architecture(model=model, hidden=5), seed=3)
    return cast("NetworkProblem", PROBLEMS[name](setting))


def samples_of(count: int, shape: tuple[int, ...] = TABLE, labels: int = 0, seed: int = 0) -> Samples:
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *shape, generator=random)
    targets = torch.randint(0, 2, (count, labels) if labels else (count,), generator=random)
    targets[:2] = torch.tensor([0, 1])[:, None] if labels else torch.tensor([0, 1])
    return Samples(inputs, targets, torch.arange(count))


def moved(problem: NetworkProblem, seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor | None]:
    """Return some point."""
    start, random = problem.initial(), torch.Generator().manual_seed(seed)
    x, y = start["x"], start.get("y")
    x = scale * (x + 0.1 * torch.randn(x.shape, generator=random))
    return x, None if y is None else y + scale * 0.3 * torch.randn(y.shape, generator=random)
