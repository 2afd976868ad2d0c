"""Local updates, done one client after the other, or for many clients side by side.

Side by side, `Algorithm.local_update` is called once for K clients: each of its vectors has a row for each of them, and
a step costs one operation for all. Each client's batches are those that it draws alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

import torch

from client_app.oracle import SiteOracle, parts
from problems import Problem
from problems.stacked import Stacked

if TYPE_CHECKING:
    from torch import Tensor

    from datasets import Samples
    from federation import FederatedStrategy, Oracle, Turn
    from problems import Arrays, Batch


class UnevenError(Exception):
    """The clients of a stack have drawn batches of different sizes."""


@dataclass(frozen=True)
class Updated:
    """What came of a client's part of a round: reply and memory, and the work that they took."""

    reply: Arrays
    memory: Arrays
    gradients: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class Update:
    """A client's part of a round, ready to be done.

    Attributes
    ----------
    strategy, problem, sent, memory, turn
        As `Algorithm.local_update` wants them.
    oracle : callable
        Returns the client's oracle at the beginning of the round, as often as it is asked.
    """

    strategy: FederatedStrategy
    problem: Problem
    sent: Arrays
    memory: Arrays
    oracle: Callable[[], SiteOracle]
    turn: Turn

    def alone(self) -> Updated:
        """Do it."""
        oracle = self.oracle()
        try:
            reply, memory = self.strategy.local_update(self.sent, self.memory, oracle, self.turn)
        finally:
            oracle.close()
        return Updated(reply, memory, oracle.gradients, oracle.differentiated)

    @property
    def stacks(self) -> bool:
        """Whether it may be done together with others."""
        return not why_alone(self.strategy, self.problem)

    def kind(self, oracle: SiteOracle) -> Hashable:
        """Return what is equal for those that can be done together: all but the values of real vectors."""
        return self.problem, self.turn, _shapes(self.sent), _shapes(self.memory), oracle.full


@lru_cache(maxsize=32)
def why_alone(strategy: FederatedStrategy, problem: Problem) -> str:
    """Say why clients have to be trained one after the other, whatever ``stack`` is; empty: they need not."""
    if not strategy.stacks:
        return f"algorithm = {strategy.name!r} takes one client at a time"
    if strategy.own_dual and type(problem).of_site is not Problem.of_site:
        return f"with algorithm = {strategy.name!r} each site has a problem = {problem.name!r} of its own"
    return problem.not_stacked()


@lru_cache(maxsize=32)
def stacked(problem: Problem) -> Stacked:
    """Return a problem for many clients; once per process."""
    return Stacked(problem)


def forget_stacks() -> None:
    """Let go of the problems of a run that is over."""
    why_alone.cache_clear()
    stacked.cache_clear()


def updated(updates: Sequence[Update]) -> list[Callable[[], Updated]]:
    """Do local updates side by side where they are of one kind; return what gives, or does, each of them."""
    results = [update.alone for update in updates]
    oracles: dict[int, SiteOracle] = {}
    groups: dict[Hashable, list[int]] = {}
    for i, update in enumerate(updates):
        with suppress(Exception):  # a site that cannot draw fails alone, when its turn comes
            oracles[i] = update.oracle()
            groups.setdefault(update.kind(oracles[i]), []).append(i)
    for group in groups.values():
        if len(group) == 1:
            continue
        try:
            for i, done in zip(group, _together([updates[i] for i in group], [oracles[i] for i in group]), strict=True):
                results[i] = partial(_given, done)
        except UnevenError:  # in an epoch, say: they are done alone
            pass
        except Exception as error:
            for i in group:
                results[i] = partial(_given, error)
    for oracle in oracles.values():
        oracle.close()
    return results


def _given(result: Updated | Exception) -> Updated:
    if isinstance(result, Exception):
        raise result
    return result


def _together(updates: Sequence[Update], oracles: Sequence[SiteOracle]) -> list[Updated]:
    first, oracle = updates[0], StackedOracle(updates[0].problem, oracles)
    sent, memory = _rows([update.sent for update in updates]), _rows([update.memory for update in updates])
    # The oracle has all that an algorithm asks for that may be stacked.
    reply, memory = first.strategy.local_update(sent, memory, cast("Oracle", oracle), first.turn)
    reply, memory = ({name: rows.cpu() for name, rows in part.items()} for part in (reply, memory))  # once for all
    work = oracle.gradients, oracle.differentiated
    return [Updated(_row(reply, k), _row(memory, k), *work) for k in range(len(updates))]


def _shapes(arrays: Arrays) -> Hashable:
    """Return names and shapes of vectors, and what they hold where that are whole numbers."""
    return tuple(
        (name, vector.shape, () if vector.is_floating_point() else tuple(vector.flatten().tolist()))
        for name, vector in sorted(arrays.items())
    )


def _rows(each: Sequence[Arrays]) -> Arrays:
    """Return vectors with a row for each client; whole numbers, which are equal for all of a kind, as one has them."""
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


def _row(stack: Arrays, k: int) -> Arrays:
    """Return one client's vectors; what has no row for each is the same for all."""
    return {name: rows[k] if rows.is_floating_point() else rows for name, rows in stack.items()}


class StackedOracle:
    """The oracles of K clients as one, whose vectors have K rows; see `federation.Oracle`.

    Parameters
    ----------
    problem : Problem
        Of all of them.
    oracles : sequence of SiteOracle
        Theirs, at the beginning of a round.

    Attributes
    ----------
    gradients, differentiated : int
        As `SiteOracle` counts them, of each client.

    Raises
    ------
    UnevenError
        By whatever draws: batches of different sizes are not computed together.
    """

    def __init__(self, problem: Problem, oracles: Sequence[SiteOracle]) -> None:
        self.problem, self.oracles, self._stacked = problem, oracles, stacked(problem)
        self.gradients = self.differentiated = 0
        self._table = _shared_table(oracles)
        self._ahead: Iterator[Batch] = iter(())

    def draw(self, size: int | None = None) -> Batch | None:
        """Return a fresh mini-batch of each client: (K, n, *shape) and (K, n)."""
        first = self.oracles[0]
        if first.draws_ahead(size := size or first.batch_size):
            if (batch := next(self._ahead, None)) is None:
                self._ahead = parts(self._many(), size, 1)
                batch = next(self._ahead)
            return batch
        if self._table is None:
            return _even([oracle.draw(size) for oracle in self.oracles])
        samples, offsets = self._table
        hands = [oracle.deal(size) for oracle in self.oracles]
        if len({len(hand) for hand in hands}) > 1:
            raise UnevenError
        positions = torch.stack(hands).add_(offsets)
        batch = samples.batch(positions.flatten())
        inputs, labels = (part.view(*positions.shape, *part.shape[1:]) for part in batch)
        if not first.weights(labels[0]):  # one sampler for all
            return inputs, labels
        weights = [oracle.weights(own) for oracle, own in zip(self.oracles, labels, strict=True)]
        return (inputs, labels, *map(torch.stack, zip(*weights, strict=True)))

    def _many(self) -> Batch:
        many = _even([oracle.draw_many() for oracle in self.oracles])
        assert many is not None, "what can be drawn ahead is something"
        return many

    def epoch(self) -> Iterator[Batch | None]:
        """Yield the mini-batches of one pass over each client's samples."""
        ends = object()
        epochs = [oracle.epoch() for oracle in self.oracles]
        while (drawn := [next(epoch, ends) for epoch in epochs]) and ends not in drawn:
            yield _even(cast("list[Batch | None]", drawn))
        if any(one is not ends for one in drawn):
            raise UnevenError

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Any]:
        """Return (gx, gy), a row for each client."""
        batch = batch if batch is not None else self.draw()
        self.gradients += 1
        self.differentiated += batch[1].shape[1] if batch is not None else 0
        return self._stacked.gradient(x, y, batch)

    def dual_terms(self, x: Tensor, batch: Batch | None = None) -> tuple[Tensor, Tensor]:
        """Return numerators (K, j, p) and denominators (K, j) or (K, j, p), of one client after the other."""
        batches = [None] * len(x) if batch is None else list(zip(*batch, strict=True))
        each = [oracle.dual_terms(own, part) for oracle, own, part in zip(self.oracles, x, batches, strict=True)]
        numerators, denominators = (torch.stack(parts) for parts in zip(*each, strict=True))
        return numerators, denominators

    def project(self, y: Tensor) -> Tensor:
        """Return each row projected onto the feasible set of y."""
        return self._stacked.project(y)

    def fresh(self) -> Arrays:
        """Return what each site starts with."""
        return _rows([oracle.fresh() for oracle in self.oracles])

    @property
    def head(self) -> int:
        """Where the head begins in a row of x."""
        return self.oracles[0].head

    @property
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """Where each of the network's parameters lies in a row of x, and its shape."""
        return self.oracles[0].layers

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do nothing: what keeps batch-norm statistics is not stacked."""
        yield


def _even(batches: Sequence[Batch | None]) -> Batch | None:
    """Return batches of one size as one, with a leading axis."""
    first = batches[0]
    if first is None:
        return None
    if any(batch is None or len(batch[1]) != len(first[1]) for batch in batches):
        raise UnevenError
    return tuple(torch.stack(parts) for parts in zip(*cast("Sequence[Batch]", batches), strict=True))


def _shared_table(oracles: Sequence[SiteOracle]) -> tuple[Samples, Tensor] | None:
    """Return all clients' samples as one set, and where in it each one's begin (K, 1), if they are of one table."""
    each = [oracle.plain_samples for oracle in oracles]
    first = each[0]
    if first is None or any(one is None or one.inputs is not first.inputs for one in each):
        return None
    rows = [one.rows for one in each if one is not None]
    begins = torch.tensor([0, *map(len, rows[:-1])]).cumsum(0)[:, None]
    return replace(first, rows=torch.cat(rows)), begins
