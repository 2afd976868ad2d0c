"""Robust training against a common perturbation of all inputs (Huang et al., AdaFGDA, section 6.3).

arXiv:2211.07303
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch.nn.functional import one_hot

from edelweiss.problems import papers
from edelweiss.problems.cross_entropy import mean_cross_entropy
from edelweiss.problems.metrics import class_metrics
from edelweiss.problems.network import NetworkProblem, mean

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.datasets import Samples
    from edelweiss.problems.base import Metrics


@dataclass(eq=False, kw_only=True)
class Robust(NetworkProblem):
    """min over the network, max over ‖ν‖² ≤ r² of the mean loss at z + ν: one ν for all samples of all sites.

    x = network, y = ν, flat, of the shape of one input; ν starts at 0. It is added to the network's input, so its unit
    is a standard deviation of the feature or channel if inputs are standardised, else the raw unit (0 to 255 for
    images). On MNIST a standard deviation is 0.308 of the range from black to white: a ball of radius 1 over pixels
    from 0 to 1 is ``radius = 3.25``.

    The paper's loss is squared, but eq. 14 omits the operation between prediction and label: it is read as
    ‖h - e_label‖², h the network's raw outputs, with ``criterion = "squared"``. Cross-entropy is our addition.
    """

    name = "robust"
    kind = "minimax"
    optimises = "the mean loss under the worst perturbation ν with ‖ν‖ ≤ r, one ν for all samples"
    reports = ("robust-accuracy", "accuracy", "worst-class", "clean-loss")
    papers = (papers.ADAFGDA,)
    multiclass = True

    radius: float = Field(1.0, gt=0, description="r: radius of the perturbations, in units of the standardised inputs")
    criterion: Literal["cross-entropy", "squared"] = Field("cross-entropy", description="the loss")

    @property
    def dual(self) -> int:
        """The number of values of an input."""
        return math.prod(self.setting.data_summary.shape)

    def transform(self, inputs: Tensor, y: Tensor) -> Tensor:
        """Perturb the inputs."""
        return inputs + y.view(*y.shape[:-1], 1, *self.setting.data_summary.shape)

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss."""
        if self.criterion == "squared":
            errors: Tensor = logits - one_hot(labels, logits.shape[1])
            return mean(errors.square().sum(1), weights)
        return mean_cross_entropy(logits, labels, weights)

    def project(self, y: Tensor) -> Tensor:
        """Project ν onto the ball."""
        norm: Tensor = torch.linalg.vector_norm(y)
        return y / (norm / self.radius).clamp(min=1)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Return ``loss`` and ``robust-accuracy`` under ν; ``clean-loss`` and accuracies on clean inputs."""
        assert data is not None, "a network is evaluated on samples"
        assert y is not None, "a perturbation belongs to the model"
        labels, nothing = data.targets(), x[:0]
        clean, perturbed = self.logits(x, data), self.logits(x, data, y.view(data.shape))
        return {
            "loss": self.loss(perturbed, labels, nothing, y).item(),
            "robust-accuracy": (perturbed.argmax(1) == labels).double().mean().item(),
            "clean-loss": self.loss(clean, labels, nothing, y).item(),
            "n": len(labels),
            **class_metrics(labels, clean),
        }
