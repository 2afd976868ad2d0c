"""Invariant logistic regression: a conditional expectation inside a logarithm, on data drawn on the fly.

arXiv:2310.02524
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import softplus

from edelweiss.common import Stream
from edelweiss.common.memory import shortage
from edelweiss.problems import papers
from edelweiss.problems.base import Problem
from edelweiss.problems.errors import ProblemError

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.datasets import Sampler, Samples
    from edelweiss.problems.base import Arrays, Batch, Metrics

LAMBDA, GAMMA = 0.001, 10.0
EVALUATED = 50_000
LARGE = 2**28  # bytes of a draw from which the available memory is checked
AHEAD = 2**16  # numbers drawn at once, which fit into the processor's cache


@dataclass(eq=False, kw_only=True)
class InvariantLogistic(Problem):
    """FCSG 5.1: E_ξ log(1 + exp(-b E_η|ξ[ηᵀx])) + λ Σ_i γ x_i² / (1 + γ x_i²), λ = 0.001, γ = 10
    (the paper's value of α, called γ in its formula).

    ξ = (a, b) with a ~ N(0, I) and b = sign(aᵀx*); η given ξ is a noisy view of a, N(a, σ² I). An estimate averages m
    views inside the logarithm. All sites draw from the same distribution.

    ``metrics`` evaluates on 50,000 pairs (a, b) fixed by the seed: the share of sign(aᵀx) = b as ``accuracy``, and the
    objective as ``loss``, exact inside the logarithm because E[η|ξ] = a.
    """

    name = "invariant-logistic"
    kind = "conditional"
    optimises = "the logistic loss of the mean over all noisy views of a sample"
    reports = ("accuracy",)
    papers = (papers.FCSG,)
    needs_data = False
    mixes_patients = "it has no data, so there are no patients"
    same_everywhere = True

    inner_samples: int = Field(10, ge=1, description="m: views of each of the batch-size outer samples")
    dimension: int = Field(10, ge=1, description="d")
    sigma_ratio: float = Field(1.0, ge=0, description="σ2/σ1: spread of the views over that of the outer samples")

    def __post_init__(self) -> None:
        super().__post_init__()
        what = f"invariant-logistic.dimension = {self.dimension}"
        if text := shortage(16 * EVALUATED * self.dimension, what, "lower it"):
            raise ProblemError(text)
        self.x_star = torch.as_tensor(solution(self.setting.seed, self.dimension)).to(self.dtype)
        self._ones = torch.ones(self.dimension, device=self.device, dtype=self.dtype)

    @property
    def draws_ahead(self) -> int:
        """The number of samples that fit into the processor's cache."""
        return AHEAD // (self.inner_samples * self.dimension)

    def initial(self) -> Arrays:
        """Return zero, at which both labels are equally likely."""
        return {"x": torch.zeros_like(self._ones)}

    def views(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        """Draw ``size`` outer samples; return their η, shape (size, m, d), and b, shape (size,)."""
        if (need := 4 * size * self.inner_samples * self.dimension) > LARGE:
            what = f"invariant-logistic.inner-samples = {self.inner_samples} of {size} samples"
            if text := shortage(need, what, "lower it, or batch-size"):
                raise ProblemError(text)
        a = torch.randn(size, self.dimension, generator=generator, dtype=self.dtype)
        noise = torch.randn(size, self.inner_samples, self.dimension, generator=generator, dtype=self.dtype)
        return noise.mul_(self.sigma_ratio).add_(a[:, None]), (a @ self.x_star).sign()

    def draw(
        self, samples: Samples | None, sampler: Sampler | None, generator: torch.Generator, size: int
    ) -> Batch | None:
        """Return b_i mean_j η_ij, shape (size, d), and b_i, shape (size,): sufficient statistics of the η."""
        eta, b = self.views(generator, size)
        return (b[:, None] * eta.mean(1)).to(self.device), b.to(self.device)

    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of the estimate on a batch, in closed form."""
        assert batch is not None, "the samples are drawn"
        signed = batch[0]
        slope = torch.mv(signed, x).neg_().sigmoid_()  # of log(1 + exp(-v)) it is -σ(-v)
        bend = torch.addcmul(self._ones, x, x, value=GAMMA).square()  # (1 + γx²)²
        regular = torch.div(x, bend)  # times 2λγ
        # As few operations as possible: they dominate the cost of a step.
        return torch.addmv(regular, signed.t(), slope, beta=2 * LAMBDA * GAMMA, alpha=-1 / len(signed)), None

    def gradients(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients for x (K, d) and batches (K, n, d), in a few operations."""
        assert batch is not None, "the samples are drawn"
        signed, columns = batch[0], x[:, :, None]
        slope = torch.bmm(signed, columns).neg_().sigmoid_()
        bend = torch.addcmul(self._ones[:, None], columns, columns, value=GAMMA).square_()
        regular = torch.div(columns, bend)
        weight = -1 / signed.shape[1]
        return regular.baddbmm_(signed.mT, slope, beta=2 * LAMBDA * GAMMA, alpha=weight).squeeze(2), None

    def unstackable_reason(self) -> str:
        """Return nothing: all sites have the same function."""
        return ""

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Return the objective and the accuracy on the pairs fixed by the seed."""
        margins = evaluated(self.setting.seed, self.dimension, self.device, self.dtype) @ x
        squares = GAMMA * x.square()
        loss = softplus(-margins).mean() + LAMBDA * (squares / (1 + squares)).sum()
        return {"loss": loss.item(), "accuracy": (margins > 0).double().mean().item()}


def solution(seed: int, dimension: int) -> np.ndarray:
    """Return x*, shape (d,)."""
    return np.random.default_rng([seed, Stream.LOGISTIC_SOLUTION]).standard_normal(dimension)


@lru_cache(maxsize=2)
def evaluated(seed: int, dimension: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return b a of the evaluation pairs, shape (50,000, d); cached per process."""
    a = np.random.default_rng([seed, Stream.LOGISTIC_TEST]).standard_normal((EVALUATED, dimension))
    signed = np.sign(a @ solution(seed, dimension))[:, None] * a
    return torch.as_tensor(signed).to(device, dtype)
