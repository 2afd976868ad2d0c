"""Worst-class training: ``fair``, cross-entropy with adversarial class weights.

arXiv:2203.04850, arXiv:1902.00146
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from edelweiss.problems import papers
from edelweiss.problems.network import NetworkProblem, mean

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.problems.base import Arrays


def project_simplex(y: Tensor) -> Tensor:
    """Project onto the simplex {y ≥ 0, Σ y = 1}, shape (C,) (Duchi et al., ICML 2008, Figure 1).

    The result is max(y - θ, 0). Duchi's θ is θ_j = (sum of the j largest entries - 1) / j at the largest j whose entry
    exceeds θ_j. θ_j grows up to there and falls after, so θ is the maximum of them.
    """
    y = y - y.max()  # only reduces rounding errors
    counts = torch.arange(1, len(y) + 1, device=y.device, dtype=y.dtype)
    theta = ((y.sort(descending=True).values.cumsum(0) - 1) / counts).max()
    return (y - theta).clamp(min=0)


class Fair(NetworkProblem):
    """min over the network, max over class weights y on the simplex of Σ_c y_c L_c, L_c the mean loss of class c.

    This is the fair classification of Sharma et al. (ICML 2022, section 5), after Mohri et al. (ICML 2019). A batch may
    lack a class, so class means within a batch would be biased. The objective is therefore written as an average over
    samples: f = mean over the batch of (y_label / p_label) times cross-entropy, p_c the share of class c among the
    training samples of all sites. Over all samples it equals Σ_c y_c L_c, and batches estimate it without bias (with
    ``weighting = "examples"``; with "uniform", patients of small sites count more). With C equally frequent classes
    1 / p_c = C, and f at the uniform y is plain cross-entropy. f is linear in y: the regulariser of Sharma et al. is
    omitted. y starts uniform.

    A class without training samples does not contribute to f.
    """

    name = "fair"
    kind = "minimax"
    optimises = "cross-entropy under the worst weights of the classes"
    reports = ("worst-class", "accuracy")
    papers = (papers.MOMENTUM, papers.AGNOSTIC)
    multiclass = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shares = self.setting.data_summary.shares or (1 / self.width,) * self.width
        self.weights = torch.tensor([1 / p if p else 0.0 for p in self.shares], device=self.device, dtype=self.dtype)

    @property
    def dual(self) -> int:
        """The number of classes: one weight each."""
        return self.width

    def dual_start(self) -> Arrays:
        """Return uniform weights."""
        return {"y": torch.full((self.dual,), 1 / self.dual, device=self.device, dtype=self.dtype)}

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return f on the batch."""
        return mean((y * self.weights)[labels] * cross_entropy(logits, labels, reduction="none"), weights)

    def project(self, y: Tensor) -> Tensor:
        """Project the weights onto the simplex."""
        return project_simplex(y)
