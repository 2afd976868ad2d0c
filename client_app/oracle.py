"""The oracle: a problem bound to one site's data and to its random stream of one round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from datasets import Sampler, Samples, make_sampler

if TYPE_CHECKING:
    from torch import Tensor

    from config import RunConfig
    from problems import Batch, Problem


def stream(seed: int, site: int, server_round: int, phase: int) -> torch.Generator:
    """Return the random stream of one site in one phase of one round; all four are non-negative."""
    state = np.random.SeedSequence([seed, 4, site, server_round, phase]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


class SiteOracle:
    """Batches and gradients of one site; what `strategies.Oracle` describes.

    Parameters
    ----------
    problem : Problem
        The objective.
    samples : Samples or None
        The site's training samples, on the problem's device; None for a problem without data.
    sampler : Sampler or None
        Draws positions in the samples.

    Attributes
    ----------
    gradients : int
        How many gradients were evaluated.
    """

    def __init__(self, problem: Problem, samples: Samples | None, sampler: Sampler | None) -> None:
        self.problem, self.samples, self.sampler = problem, samples, sampler
        self.gradients = 0

    @classmethod
    def open(
        cls, config: RunConfig, problem: Problem, samples: Samples | None, generator: torch.Generator
    ) -> SiteOracle:
        """Bind a problem to samples and a random stream, with the run's sampler and batch size.

        Raises
        ------
        DataError
            When the sampler cannot work on these labels.
        """
        if samples is None:
            return cls(problem, None, None)
        labels = samples.targets().cpu()
        sampler = make_sampler(config.sampler, labels, config.batch_size, config.positives_per_batch, generator)
        return cls(problem, samples, sampler)

    def draw(self, size: int | None = None) -> Batch | None:
        """Return a fresh mini-batch; None for a problem without data."""
        if self.samples is None or self.sampler is None:
            return None
        return self.samples.batch(self.sampler.draw(size).to(self.problem.device, non_blocking=True))

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (gx, gy) at any point, on the given batch or on a fresh one."""
        self.gradients += 1
        return self.problem.gradient(x, y, batch if batch is not None else self.draw())

    def project(self, y: Tensor) -> Tensor:
        """Return y projected onto its feasible set."""
        return self.problem.project(y)
