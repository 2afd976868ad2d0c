"""Invariant logistic regression: a conditional expectation inside a logarithm, on data drawn as they are needed."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import softplus

from problems.base import Problem

if TYPE_CHECKING:
    from torch import Tensor

    from datasets import Sampler, Samples
    from problems.base import Arrays, Batch, Metrics

LAMBDA, GAMMA = 0.001, 10.0
EVALUATED = 50_000
AHEAD = 2**16  # numbers drawn at once: a step costs less, and they stay in the processor's cache


class InvariantLogistic(Problem):
    """FCSG 5.1: E_ξ log(1 + exp(-b E_η|ξ[ηᵀx])) + λ Σ_i γ x_i² / (1 + γ x_i²), λ = 0.001, γ = 10.

    ξ = (a, b) with a ~ N(0, I) and b = sign(aᵀx*); η given ξ is a view of a through noise, N(a, σ² I). An estimate
    takes the mean over m of them inside the logarithm. All sites draw from the same distribution, each its own samples.

    ``metrics`` evaluates on 50,000 pairs (a, b) that the seed fixes, the same everywhere: the share of
    sign(aᵀx) = b as ``accuracy``, and as ``loss`` the objective, exact within the logarithm because E[η|ξ] = a.

    Parameters
    ----------
    inner : int
        m ≥ 1, views per outer sample.
    dimension : int
        d.
    sigma_ratio : float
        σ ≥ 0: the noise of a view in units of the spread of a (σ2/σ1).
    seed : int
        Of x*, standard normal, and of the pairs that are evaluated.
    device, dtype
        Of all vectors.
    """

    name = "invariant-logistic"
    kind = "conditional"
    needs_data = False
    dimension = 10

    def __init__(
        self,
        inner: int = 10,
        dimension: int = 10,
        sigma_ratio: float = 1.0,
        seed: int = 0,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device, self.dtype, self.seed = torch.device(device), dtype, seed
        self.m, self.d, self.sigma_ratio = inner, dimension, sigma_ratio
        self.x_star = torch.as_tensor(solution(seed, dimension)).to(dtype)
        self.draws_ahead = AHEAD // (inner * dimension)
        self._ones = torch.ones(dimension, device=self.device, dtype=dtype)

    def initial(self) -> Arrays:
        """Return zero, where both labels are equally likely."""
        return {"x": torch.zeros_like(self._ones)}

    def views(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        """Draw ``size`` outer samples; returns all their η, shape (size, m, d), and their b, shape (size,)."""
        a = torch.randn(size, self.d, generator=generator, dtype=self.dtype)
        noise = torch.randn(size, self.m, self.d, generator=generator, dtype=self.dtype)
        return noise.mul_(self.sigma_ratio).add_(a[:, None]), (a @ self.x_star).sign()

    def draw(
        self, samples: Samples | None, sampler: Sampler | None, generator: torch.Generator, size: int
    ) -> Batch | None:
        """Return b_i mean_j η_ij, shape (size, d), and b_i, shape (size,): all that the objective sees of the η."""
        eta, b = self.views(generator, size)
        return (b[:, None] * eta.mean(1)).to(self.device), b.to(self.device)

    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of the estimate on a batch, in closed form."""
        assert batch is not None, "the samples are drawn"
        signed = batch[0]
        slope = torch.mv(signed, x).neg_().sigmoid_()  # of log(1 + exp(-v)) it is -σ(-v)
        bend = torch.addcmul(self._ones, x, x, value=GAMMA).square_()  # (1 + γx²)²
        regular = torch.div(x, bend)  # times 2λγ
        # Few operations, for here they are what a step costs.
        return regular.addmv_(signed.t(), slope, beta=2 * LAMBDA * GAMMA, alpha=-1 / len(signed)), None

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Return the objective and the accuracy on the pairs that the seed fixes."""
        margins = evaluated(self.seed, self.d, self.device, self.dtype) @ x
        squares = GAMMA * x.square()
        loss = softplus(-margins).mean() + LAMBDA * (squares / (1 + squares)).sum()
        return {"loss": loss.item(), "accuracy": (margins > 0).double().mean().item()}


def solution(seed: int, dimension: int) -> np.ndarray:
    """Return x*, shape (d,)."""
    return np.random.default_rng([seed, 5]).standard_normal(dimension)


@lru_cache(maxsize=2)
def evaluated(seed: int, dimension: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return b a of the pairs to evaluate on, shape (50,000, d); once per process, whatever sites it serves."""
    a = np.random.default_rng([seed, 6]).standard_normal((EVALUATED, dimension))
    signed = np.sign(a @ solution(seed, dimension))[:, None] * a
    return torch.as_tensor(signed).to(device, dtype)
