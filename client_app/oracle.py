"""The oracle: a problem bound to one site's data and random stream of one round."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from edelweiss.client_app.loader import Batches, Loader, parts
from edelweiss.common import Stream
from edelweiss.datasets import Augmentation, Sampler, Samples, make_sampler
from edelweiss.federation import Differences
from edelweiss.problems import Problem
from edelweiss.problems.network import evaluation_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from edelweiss.client_app.policy.limits import Limits
    from edelweiss.config import RunConfig
    from edelweiss.problems import Arrays, Batch
    from edelweiss.problems.capabilities import BalancedLoss, ClosedFormDual, InnerFunction, Layers


def stream(seed: int, site: int, server_round: int, phase: int) -> torch.Generator:
    """Return the random stream of one site in one phase of one round; all four are non-negative."""
    key = [seed, Stream.BATCHES, site, server_round, phase]
    # Equivalent to a list of the numbers, which NumPy converts slowly.
    words = np.array(key, np.uint32) if max(key) < 2**32 else key
    state = np.random.SeedSequence(words).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


class SiteOracle(Differences):
    """Batches and gradients of one site; see `federation.Oracle`.

    Parameters
    ----------
    problem : Problem
        The objective.
    samples : Samples or None
        The site's training samples, on the problem's device; None for a problem without data.
    sampler : Sampler or None
        Draws positions of samples.
    generator : torch.Generator
        This site's random stream of this round.
    batch_size : int
        The default batch size.
    fresh : callable, optional
        Returns the site's initial head and y, read-only; default: those of all sites.
    augmentation : Augmentation, optional
        Augmentation of drawn images; default: none.
    common : Problem, optional
        The objective within `aside`, over the same network; default: ``problem``.
    limits : Limits, optional
        Fewest patients per batch and longest time, enforced by RefusedError; default: none.

    Attributes
    ----------
    gradients : int
        Gradient evaluations, one per call of `gradient` for any batch size.
    differentiated : int
        Samples over which gradients were taken; 0 without data.
    """

    def __init__(
        self,
        problem: Problem,
        samples: Samples | None,
        sampler: Sampler | None,
        generator: torch.Generator,
        batch_size: int = 1,
        fresh: Callable[[], Arrays] | None = None,
        augmentation: Augmentation | None = None,
        common: Problem | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.problem, self.common, self.samples = problem, common or problem, samples
        self.batch_size, self.fresh = batch_size, fresh or problem.fresh
        self.gradients = self.differentiated = 0
        self._limits = limits
        self._counts: Tensor | None = None  # of the classes, cached
        self._batch: Batch | None = None  # of the last gradient
        self._used = 0  # batches that gradients were taken on
        notes = limits is not None and limits.fewest > 0
        self._batches = Batches(problem, samples, sampler, generator, augmentation or None, notes)
        self._loader = Loader(self._batches, batch_size) if self._batches.slow(batch_size) else None
        self._ahead: Iterator[Batch] = iter(())
        self._count = 8

    @classmethod
    def open(
        cls,
        config: RunConfig,
        problem: Problem,
        samples: Samples | None,
        generator: torch.Generator,
        fresh: Callable[[], Arrays] | None = None,
        common: Problem | None = None,
        limits: Limits | None = None,
    ) -> SiteOracle:
        """Bind a problem to samples and a random stream, with the run's sampler and batch size.

        Raises
        ------
        DataError
            If the sampler cannot work on these labels.
        """
        size, sampler = config.batch_size, None
        if samples is not None:
            labels = samples.targets().cpu()
            sampler = make_sampler(config.sampler, labels, size, config.positives_per_batch, generator)
        return cls(problem, samples, sampler, generator, size, fresh, config.augmentation, common, limits)

    def close(self) -> None:
        """End the thread that prepares batches, if there is one."""
        if self._loader is not None:
            self._loader.close()

    @property
    def generator(self) -> torch.Generator:
        """The site's random stream after the batches drawn so far."""
        if self._loader is not None:
            self._loader.settle()
        return self._batches.generator

    def draw(self, size: int | None = None, then: Sequence[int] | None = None) -> Batch | None:
        """Return a fresh mini-batch; None without data. ``then``: sizes of the next batches, if known."""
        size = size or self.batch_size
        if self.draws_ahead(size):
            if (batch := next(self._ahead, None)) is None:
                self._ahead = parts(self.draw_many(), size)
                batch = next(self._ahead)
            return batch
        batch, rows = self._batches.draw(size) if self._loader is None else self._loader.take(size, then)
        if self._limits is not None and rows is not None:
            self._limits.require_patients(rows, size)
        return batch

    def draws_ahead(self, size: int) -> bool:
        """Whether batches of this size are drawn many at once."""
        return size == self.batch_size and size < self.problem.draws_ahead

    def draw_many(self) -> Batch:
        """Return the next batches as one, twice as many as the last time, because a round may be short."""
        self._count = min(2 * self._count, self.problem.draws_ahead // self.batch_size)
        many, _ = self._batches.draw(self.batch_size * self._count)
        assert many is not None, "what can be drawn ahead is something"
        return many

    @property
    def full(self) -> int:
        """Samples in a batch of the default size, which the site's samples may limit."""
        sampler = self._batches.sampler
        return self.batch_size if sampler is None else sampler.full(self.batch_size)

    @property
    def batches(self) -> int:
        """Number of batches per `epoch`."""
        return max(1, math.ceil((0 if self.samples is None else len(self.samples)) / self.batch_size))

    @property
    def plain(self) -> tuple[Samples, Sampler] | None:
        """The site's samples and sampler, if batches are plain selections of the samples."""
        batches = self._batches
        own = type(self.problem).draw is not Problem.draw or batches.augmentation or batches.notes or self._loader
        samples, sampler = self.samples, self._batches.sampler
        return None if own or samples is None or sampler is None else (samples, sampler)

    def epoch(self) -> Iterator[Batch | None]:
        """Yield the ⌈n / b⌉ batches of one pass over the site's n training samples, in random order.

        Their sizes differ by at most 1, which avoids a last batch of one sample, unusable for batch norm. With the
        sampler ``uniform`` each sample occurs once; with ``fixed-positives`` each batch has its share of positives.
        """
        count, sampler, batches = 0 if self.samples is None else len(self.samples), self._batches.sampler, self.batches
        if self._loader is not None:
            self._loader.settle()
        if sampler is not None:
            sampler.restart()
        sizes = [count * (i + 1) // batches - count * i // batches for i in range(batches)]
        for i, size in enumerate(sizes):
            yield self.draw(size, sizes[i + 1 :])

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (gx, gy) at any point, on the given batch or on a fresh one.

        The model's own randomness (dropout) derives from the stream's seed and the batch number: it is new for each
        batch, equal for consecutive gradients on one, and does not affect the drawing of batches.
        """
        return self.problem.gradient(x, y, self._noted(batch))

    def full_gradient(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (gx, gy) over all of the site's training samples, for an objective that is their mean.

        Computed block by block to limit memory, and counted as one gradient.
        """
        blocks = self._blocks()
        if blocks is None:
            return self.gradient(x, y)
        total, gx, gy, counted = 0, torch.zeros_like(x), None if y is None else torch.zeros_like(y), self.gradients
        for block in blocks:
            size = len(block[1])
            bx, by = self.gradient(x, y, block)
            total += size
            gx.add_(bx, alpha=size)
            if gy is not None and by is not None:
                gy.add_(by, alpha=size)
        self.gradients = counted + 1
        return gx.div_(total), None if gy is None else gy.div_(total)

    def _blocks(self) -> Iterator[Batch] | None:
        """Return all training samples in blocks; None for a problem without data."""
        if self.samples is None:
            return None
        everything = torch.arange(len(self.samples), device=self.problem.device)
        if self._limits is not None:
            self._limits.require_patients(everything, self.batch_size)
        return (self.samples.batch(rows) for rows in torch.split(everything, evaluation_batch(self.samples.shape)))

    def _noted(self, batch: Batch | None) -> Batch | None:
        """Count a gradient and seed the model's randomness; return the batch or a fresh one."""
        if self._limits is not None:
            self._limits.require_time()
        batch = batch if batch is not None else self.draw()
        if batch is not self._batch:
            self._batch, self._used = batch, self._used + 1
        self.problem.reseed((self._batches.generator.initial_seed() + self._used) % 2**63)
        self.gradients += 1
        self.differentiated += len(batch[1]) if batch is not None else 0
        return batch

    def require_time(self) -> None:
        """Raise RefusedError if the site's time limit for this reply has passed."""
        if self._limits is not None:
            self._limits.require_time()

    def inner(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return g(x; batch), the inner function's estimate; counted with its gradient."""
        self.require_time()
        return cast("InnerFunction", self.problem).inner(x, batch)

    def compositional_gradient(self, x: Tensor, s: Tensor, batch: Batch | None) -> Tensor:
        """Return ∇g(x; batch)ᵀ ∇f(s; batch), one gradient."""
        self.require_time()
        self.gradients += 1
        self.differentiated += len(batch[1]) if batch is not None else 0
        return cast("InnerFunction", self.problem).compositional_gradient(x, s, batch)

    def balanced_gradient(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return the gradient of the balanced loss, with this site's class counts; one gradient."""
        assert self.samples is not None, "a balanced loss needs samples"
        if self._counts is None:
            self._counts = self.samples.targets().bincount()
        batch = self._noted(batch)
        return cast("BalancedLoss", self.problem).balanced(self._counts).gradient(x, None, batch)[0]

    @property
    def head(self) -> int:
        """Where the head begins in x."""
        return cast("Layers", self.problem).head

    @property
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """Where each of the network's parameters lies in x, and its shape."""
        return cast("Layers", self.problem).layers

    @property
    def norms(self) -> Tensor:
        """The positions in x of the scales and shifts of batch norm."""
        return cast("Layers", self.problem).norms

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take gradients of the common model and objective; batch-norm statistics are left unchanged."""
        own, statistics = self.problem, self.problem.buffers()
        self.problem = self.common
        yield
        self.problem = own
        if statistics.numel():
            self.problem.load_buffers(statistics)

    def dual_terms(self, x: Tensor, batch: Batch | None = None) -> tuple[Tensor, Tensor]:
        """Return numerators (j, p) and denominators (j,) or (j, p), summed over a batch; by default over all samples.

        The batch may have any size. No gradient is evaluated.
        """
        problem = cast("ClosedFormDual", self.problem)
        parts: Iterable[Batch] | None = self._blocks()
        if batch is not None:
            if self._limits is not None:
                self._limits.require_of_each_class(batch[1])
            parts = zip(*(torch.split(values, evaluation_batch(batch[0].shape[1:])) for values in batch), strict=True)
        if parts is None:
            return problem.dual_terms(x, None)
        numerators, denominators = zip(*(problem.dual_terms(x, part) for part in parts), strict=True)
        return torch.stack(numerators).sum(0), torch.stack(denominators).sum(0)

    def project(self, y: Tensor) -> Tensor:
        """Return y projected onto its feasible set."""
        return self.problem.project(y)
