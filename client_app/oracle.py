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
    generator : torch.Generator
        This site's random stream of this round.
    batch_size : int
        Of a draw that names no size.

    Attributes
    ----------
    gradients : int
        How many gradients were evaluated: one at each call of `gradient`, whatever the size of the batch.
    differentiated : int
        Samples that they were taken over; 0 where a problem has none.
    """

    def __init__(
        self,
        problem: Problem,
        samples: Samples | None,
        sampler: Sampler | None,
        generator: torch.Generator,
        batch_size: int = 1,
    ) -> None:
        self.problem, self.samples, self.sampler = problem, samples, sampler
        self.generator, self.batch_size = generator, batch_size
        self.gradients = self.differentiated = 0

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
        size, sampler = config.batch_size, None
        if samples is not None:
            labels = samples.targets().cpu()
            sampler = make_sampler(config.sampler, labels, size, config.positives_per_batch, generator)
        return cls(problem, samples, sampler, generator, size)

    def draw(self, size: int | None = None) -> Batch | None:
        """Return a fresh mini-batch; None for a problem that needs none."""
        return self.problem.draw(self.samples, self.sampler, self.generator, size or self.batch_size)

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (gx, gy) at any point, on the given batch or on a fresh one."""
        batch = batch if batch is not None else self.draw()
        self.gradients += 1
        self.differentiated += len(batch[1]) if batch is not None else 0
        return self.problem.gradient(x, y, batch)

    def project(self, y: Tensor) -> Tensor:
        """Return y projected onto its feasible set."""
        return self.problem.project(y)
