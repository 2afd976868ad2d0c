"""A vectorised oracle of many clients: each draws the same batches as alone, and a gradient is one operation."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.nn.functional import pad

from edelweiss.client_app.loader import parts
from edelweiss.common import PROCESS_CACHE
from edelweiss.federation import Differences
from edelweiss.problems.stacked import Stacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from edelweiss.client_app.oracle import SiteOracle
    from edelweiss.datasets import Sampler, Samples
    from edelweiss.problems import Arrays, Batch, Problem


class UnevenError(Exception):
    """The clients of a stack have different numbers of batches, or sizes that cannot be padded."""


@PROCESS_CACHE.keeps(32)
def stacked(problem: Problem) -> Stacked:
    """Return the vectorised problem, cached per process."""
    return Stacked(problem)


def rows_of(each: Sequence[Arrays]) -> Arrays:
    """Stack vectors with a row for each client; integers, which are equal for all, are not stacked."""
    stack: Arrays = {}
    for name, vector in each[0].items():
        vectors = [arrays[name] for arrays in each]
        if not vector.is_floating_point():
            stack[name] = vector
        elif all(one is vector for one in vectors):
            stack[name] = vector.expand(len(vectors), *vector.shape)
        else:
            stack[name] = torch.stack(vectors)
    return stack


class StackedOracle(Differences):
    """The oracle of K clients, whose vectors have K rows; see `federation.Oracle`.

    Parameters
    ----------
    problem : Problem
        The common problem.
    oracles : sequence of SiteOracle
        Theirs, at the beginning of a round.

    Attributes
    ----------
    gradients, differentiated : int, list of int
        As `SiteOracle` counts them: equal for all clients, and of each.

    Raises
    ------
    UnevenError
        On drawing batches that cannot be stacked.
    """

    def __init__(self, problem: Problem, oracles: Sequence[SiteOracle]) -> None:
        self.problem, self.oracles, self._stacked = problem, oracles, stacked(problem)
        self.gradients, self._counted = 0, torch.zeros(len(oracles), dtype=torch.int64, device=problem.device)
        self._dealer = _Dealer.of(oracles)
        self._ahead: Iterator[Batch] = iter(())

    def draw(self, size: int | None = None) -> Batch | None:
        """Return a fresh mini-batch of each client: (K, n, *shape) and (K, n)."""
        first = self.oracles[0]
        if first.draws_ahead(size := size or first.batch_size):
            if (batch := next(self._ahead, None)) is None:
                self._ahead = parts(self._many(), size, 1)
                batch = next(self._ahead)
            return batch
        if self._dealer is None:
            return self._joined([oracle.draw(size) for oracle in self.oracles])
        positions = self._dealer.deal(size)
        sizes = self._stackable(self._dealer.sizes)
        batch = self._dealer.samples.batch(positions.flatten())
        inputs, labels = (part.view(*positions.shape, *part.shape[1:]) for part in batch)
        return (inputs, labels, *self._weights(self._dealer.weights(labels), sizes))

    def _joined(self, batches: Sequence[Batch | None]) -> Batch | None:
        """Return the clients' batches as one, with a leading axis."""
        drawn = [batch for batch in batches if batch is not None]
        if not drawn:
            return None
        sizes = self._stackable([len(batch[1]) for batch in drawn])
        inputs, labels = (torch.stack([_filled(batch[place], max(sizes)) for batch in drawn]) for place in (0, 1))
        return (inputs, labels, *self._weights([batch[2] if len(batch) > 2 else None for batch in drawn], sizes))

    def _stackable(self, sizes: list[int]) -> list[int]:
        """Return the sizes of the clients' batches, if they can be stacked."""
        if len(sizes) < len(self.oracles) or (len(set(sizes)) > 1 and not self._stacked.supports_masking):
            raise UnevenError
        return sizes

    def _weights(self, own: Sequence[Tensor | None], sizes: Sequence[int]) -> Iterator[Tensor]:
        """Yield the weights (K, n) of batches that are filled up to one length, if any has weights or was filled up."""
        if len(set(sizes)) == 1 and all(part is None for part in own):
            return
        length, problem = max(sizes), self.problem
        parts = [torch.ones(size) if part is None else part for part, size in zip(own, sizes, strict=True)]
        parts = [part.to(problem.device, problem.dtype) * (length / len(part)) for part in parts]
        yield torch.stack([pad(part, (0, length - len(part))) for part in parts])

    def _many(self) -> Batch:
        many = self._joined([oracle.draw_many() for oracle in self.oracles])
        assert many is not None, "there are data to draw ahead"
        return many

    def epoch(self) -> Iterator[Batch | None]:
        """Yield the mini-batches of one pass over each client's samples."""
        if len({oracle.batches for oracle in self.oracles}) > 1:
            raise UnevenError
        epochs = zip(*(oracle.epoch() for oracle in self.oracles), strict=True)
        while True:
            if self._dealer is not None:
                self._dealer.settle()
            if (drawn := next(epochs, None)) is None:
                return
            yield self._joined(drawn)

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Any]:
        """Return (gx, gy), a row for each client."""
        batch = batch if batch is not None else self.draw()
        for oracle in self.oracles:
            oracle.require_time()
        self.gradients += 1
        if batch is not None:
            self._counted += batch[2].count_nonzero(1) if len(batch) > 2 else batch[1].shape[1]
        return self._stacked.gradient(x, y, batch)

    @property
    def differentiated(self) -> list[int]:
        """Samples of each client's gradients."""
        return cast("list[int]", self._counted.tolist())

    def dual_terms(self, x: Tensor, batch: Batch | None = None) -> tuple[Tensor, Tensor]:
        """Return numerators (K, j, p) and denominators (K, j) or (K, j, p), computed client by client."""
        batches = [None] * len(x) if batch is None else [_emptied(own) for own in zip(*batch, strict=True)]
        each = [oracle.dual_terms(own, part) for oracle, own, part in zip(self.oracles, x, batches, strict=True)]
        numerators, denominators = (torch.stack(parts) for parts in zip(*each, strict=True))
        return numerators, denominators

    def project(self, y: Tensor) -> Tensor:
        """Return each row projected onto the feasible set of y."""
        return self._stacked.project(y)

    def fresh(self) -> Arrays:
        """Return each site's initial head and y."""
        return rows_of([oracle.fresh() for oracle in self.oracles])

    @property
    def head(self) -> int:
        """Where the head begins in a row of x."""
        return self.oracles[0].head

    @property
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """Where each of the network's parameters lies in a row of x, and its shape."""
        return self.oracles[0].layers

    @property
    def norms(self) -> Tensor:
        """The positions in a row of x of the scales and shifts of batch norm."""
        return self.oracles[0].norms

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do nothing: models with batch-norm statistics are not stacked."""
        yield


class _Dealer:
    """Draws the positions of all clients' batches in their common table.

    The batches of a shuffle are stacked once, not at each step.

    Parameters
    ----------
    samples : Samples
        The samples of all clients, concatenated.
    samplers : sequence of Sampler
        Each client's own.
    begins : Tensor
        Where its samples begin, (K, 1).

    Attributes
    ----------
    sizes : list of int
        Sizes of the clients' last batches, without padding.
    """

    def __init__(self, samples: Samples, samplers: Sequence[Sampler], begins: Tensor) -> None:
        self.samples, self._samplers, self._begins = samples, samplers, begins
        self.sizes: list[int] = []
        self._size = self._used = 0
        self._decided: Sequence[Tensor] = ()  # the next batches, each (K, n); the samplers have not drawn them

    @classmethod
    def of(cls, oracles: Sequence[SiteOracle]) -> _Dealer | None:
        """Return the dealer of these clients; None if their batches are not all plain samples of one table."""
        each = [plain for oracle in oracles if (plain := oracle.plain)]
        first = each[0][0] if len(each) == len(oracles) else None
        if first is None or any(samples.inputs is not first.inputs for samples, _ in each):
            return None
        rows = [samples.rows for samples, _ in each]
        begins = torch.tensor([0, *map(len, rows[:-1])]).cumsum(0)[:, None]
        return cls(replace(first, rows=torch.cat(rows)), [sampler for _, sampler in each], begins)

    def deal(self, size: int) -> Tensor:
        """Return the positions of a fresh mini-batch of each client, (K, n)."""
        if size != self._size or self._used == len(self._decided):
            self.settle()
            if size != self._size:
                self._size, self.sizes = size, [sampler.full(size) for sampler in self._samplers]
            dealt = [sampler.ahead(size) for sampler in self._samplers]
            block = np.empty((min(map(len, dealt)), len(dealt), max(self.sizes)), np.int64)
            for k, hands in enumerate(dealt):
                block[:, k, : hands.shape[1]] = hands[: len(block)]
                block[:, k, hands.shape[1] :] = hands[: len(block), :1]  # padded with the first
            now, *self._decided = torch.from_numpy(block).add_(self._begins).unbind()
            return now
        self._used += 1
        return self._decided[self._used - 1]

    def settle(self) -> None:
        """Restore the samplers to their state without batches drawn ahead."""
        for sampler in self._samplers if self._used else ():
            sampler.skip(self._size, self._used)
        self._decided, self._used = (), 0

    def weights(self, labels: Tensor) -> list[Tensor | None]:
        """Return the weights that belong to the batches dealt last, with these labels (K, n); None for equal ones."""
        drawn = zip(self._samplers, labels, self.sizes, strict=True)
        return [sampler.weights(own[:count]) if sampler.weighs else None for sampler, own, count in drawn]


def _filled(part: Tensor, length: int) -> Tensor:
    """Pad a part of a batch with its first sample."""
    missing = length - len(part)
    return torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part


def _emptied(batch: Batch) -> Batch:
    """Return a client's batch without padding, with its original weights."""
    if len(batch) == 2:
        return batch
    size, length = int(batch[2].count_nonzero()), len(batch[2])
    inputs, labels, weights = (part[:size] for part in batch)
    return inputs, labels, weights * (size / length)
