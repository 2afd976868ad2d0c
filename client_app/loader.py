"""A thread that prepares a site's next batches while gradients are computed, with identical results."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from edelweiss.common import Stream
from edelweiss.datasets.memory_mapped import file_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from torch import Tensor

    from edelweiss.datasets import Augmentation, Sampler, Samples
    from edelweiss.datasets.samplers import Mark as SamplerMark
    from edelweiss.problems import Batch, Problem

    Mark = tuple[int, Tensor, SamplerMark]
    Drawn = tuple[Batch | None, Tensor | None]
    """A batch, and the positions of its samples if `Batches` records them."""

AHEAD = 2  # batches prepared ahead
SLOW = 2**18  # least values of a batch for which a thread may pay


def parts(batch: Batch, size: int, axis: int = 0) -> Iterator[Batch]:
    """Split a large batch into batches of a size, along an axis."""
    return zip(*(torch.split(part, size, axis) for part in batch), strict=True)


@dataclass
class Batches:
    """A site's batches in one round, drawn one after the other."""

    # problem, samples, sampler, generator: as `SiteOracle` has them
    problem: Problem
    samples: Samples | None
    sampler: Sampler | None
    generator: torch.Generator
    # augmentation of training images, with a random stream of its own, derived from the site's seed and the batch
    # number: the drawn samples are the same without it
    augmentation: Augmentation | None
    notes: bool = False  # whether to record the positions of a batch's samples
    drawn: int = 0

    def draw(self, size: int) -> Drawn:
        """Draw the next one."""
        seen: list[Tensor] = []
        self.drawn, samples = self.drawn + 1, self.samples
        if self.notes and samples is not None:
            samples = replace(samples, seen=seen.append)
        if self.augmentation and samples is not None:
            seed = np.random.SeedSequence([self.generator.initial_seed(), Stream.AUGMENTATION, self.drawn])
            numbers = torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0]))
            samples = replace(samples, augment=partial(self.augmentation.draw, generator=numbers))
        batch = self.problem.draw(samples, self.sampler, self.generator, size)
        return batch, torch.cat([rows.flatten() for rows in seen]) if seen else None

    def mark(self) -> Mark:
        """Return the current state."""
        return self.drawn, self.generator.get_state(), () if self.sampler is None else self.sampler.mark()

    def back(self, mark: Mark) -> None:
        """Restore a state."""
        self.drawn, state, place = mark
        self.generator.set_state(state)
        if self.sampler is not None:
            self.sampler.back(place)

    def slow(self, size: int) -> bool:
        """Whether a batch of this size is slow to prepare: images from a file, to a GPU, or augmented."""
        samples = self.samples
        if samples is None or size * prod(samples.shape) < SLOW:
            return False
        return bool(self.augmentation or file_of(samples.inputs) or samples.inputs.device != samples.labels.device)


class Loader:
    """Draws the expected next batches in a thread before they are requested.

    If another batch is requested, the expected ones are undone first: sampler and random stream are restored.

    Parameters
    ----------
    batches
        For the thread's exclusive use, except after `settle`.
    size
        Expected batch size until another is requested.
    """

    def __init__(self, batches: Batches, size: int) -> None:
        self._batches = batches
        self._size: int | None = size  # expected batch size
        self._last = 0  # last requested size
        self._ready: deque[tuple[int, Future[tuple[Mark, Drawn]]]] = deque()
        self._thread = ThreadPoolExecutor(1, "batches")

    def take(self, size: int, then: Sequence[int] | None = None) -> Drawn:
        """Return the next batch.

        Parameters
        ----------
        size
            The batch size.
        then
            Sizes of the next batches, if known. By default the usual size is expected; after another size, none until a
            size is requested twice in a row.
        """
        if self._ready and self._ready[0][0] != size:
            self.settle()
            self._size = None
        if size == self._last:
            self._size = size
        self._last = size
        usual = [] if self._size is None else [self._size] * AHEAD
        for expected in [size, *(usual if then is None else then[:AHEAD])][len(self._ready) :]:
            self._ready.append((expected, self._thread.submit(self._draw, expected)))
        return self._ready.popleft()[1].result()[1]

    def settle(self) -> None:
        """Undo unused batches; sampler and stream are the caller's until the next request."""
        drawn = [future for _, future in reversed(self._ready) if not future.cancel()]  # the last first
        self._ready.clear()
        marks = [future.result()[0] for future in drawn]
        if marks:
            self._batches.back(marks[-1])

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _draw(self, size: int) -> tuple[Mark, Drawn]:
        return self._batches.mark(), self._batches.draw(size)
