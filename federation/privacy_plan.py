"""What a run asks of a site's data: found by playing the algorithm with an oracle that only counts."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch

from edelweiss.common import PROCESS_CACHE, ConfigError
from edelweiss.federation.algorithm import phases_of
from edelweiss.federation.privacy_account import Query
from edelweiss.federation.run_messages import RunMessages
from edelweiss.federation.schema import Vector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from edelweiss.federation import Algorithm
    from edelweiss.federation.oracle import Point
    from edelweiss.problems import Arrays, Batch

DUAL_NOISE = 4.0
"""Noise of the terms of a best y, as a multiple of a gradient's: they are about all patients, so they take little."""

MOST_GRADIENTS = 10**5
"""Most gradients of a private run at a site: playing more would keep it busy before anything is paid."""

SIZE, HEAD = 8, 4  # of the model that is played with
LAYERS = (slice(0, HEAD), (2, HEAD // 2)), (slice(HEAD, SIZE), (2, HEAD // 2))


def rate_of(size: int, patients: int) -> float:
    """Return q of a batch that holds ``size`` patients on average."""
    return min(1.0, size / max(1, patients))


Plan = dict[tuple[int, str], Counter[Query]]
"""The queries of each phase of each round."""


@PROCESS_CACHE.keeps(32)
def plan_of(algorithm: Algorithm, rounds: int, sites: int, patients: int, batch_size: int, minimax: bool) -> Plan:
    """Return what a run asks of a site that takes part in all of it, and loses nothing that it remembers.

    Parameters
    ----------
    algorithm
        One that `federation.oracle.not_private` has nothing against.
    rounds, sites
        R and K.
    patients, batch_size
        n, and the patients that a batch holds on average.
    minimax
        Whether there is a y.

    Raises
    ------
    ConfigError
        If it asks for more than `MOST_GRADIENTS`.
    """
    start = {"x": torch.zeros(SIZE)} | ({"y": torch.zeros(1)} if minimax else {})
    model = cast("Any", SimpleNamespace(head=HEAD, layers=LAYERS))
    messages = RunMessages(algorithm, start, rounds, sites, model)
    plan: Plan = {}
    left = MOST_GRADIENTS
    reply: Arrays = {}
    memory: Arrays = {}
    for server_round in range(1, rounds + 1):
        for phase in phases_of(algorithm, server_round, rounds, sites):
            context = messages.context(server_round, phase)
            sent = {name: _like(shape, reply.get(name)) for name, shape in messages.down(context)[0].items()}
            oracle = CountingOracle(start, patients, batch_size, left)
            answer, memory = algorithm.local_update(sent, memory, cast("Any", oracle), context)
            left = oracle.left
            reply, plan[server_round, phase] = reply | answer, oracle.queries
    return plan


def total(plan: Plan) -> Counter[Query]:
    """Return the queries of a whole run."""
    return sum(plan.values(), Counter[Query]())


def _like(shape: Vector, vector: Tensor | None) -> Tensor:
    """Return what the site last answered under this name, if it has the shape; else zeros."""
    if vector is not None and Vector.of(vector) == shape:
        return vector
    return torch.zeros(shape.shape, dtype=getattr(torch, shape.dtype))


@dataclass(eq=False)
class Counted:
    """A batch that a query is about: the sample's rate, and how many gradients were taken on it; see `Query`."""

    rate: float
    gradients: float = 0


class CountingOracle:
    """An oracle without data, whose gradients are zero, and which counts what it is asked; see `federation.Oracle`.

    Parameters
    ----------
    start
        x, and y where there is one.
    patients, batch_size
        n, and the patients that a batch holds on average.
    left
        How many gradients may be asked for.
    """

    head, layers, norms = HEAD, LAYERS, torch.arange(0)

    def __init__(self, start: Arrays, patients: int, batch_size: int, left: int = MOST_GRADIENTS) -> None:
        self.left = left
        self._start, self._patients, self._size = start, patients, batch_size
        self._counted: list[Counted] = []
        self.generator = torch.Generator().manual_seed(0)

    @property
    def queries(self) -> Counter[Query]:
        """What it was asked."""
        return Counter(Query(batch.rate, batch.gradients) for batch in self._counted if batch.gradients)

    def draw(self, size: int | None = None) -> Batch:
        """Return a batch to count on."""
        self._counted.append(Counted(rate_of(size or self._size, self._patients)))
        return cast("Batch", self._counted[-1])

    def epoch(self) -> Iterator[Batch]:
        """Yield as many batches as an epoch has."""
        for _ in range(max(1, math.ceil(self._patients / self._size))):
            yield self.draw()

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Any]:
        """Count a gradient."""
        self.left -= 1
        if self.left < 0:
            raise ConfigError(
                "run-config",
                [
                    f"dp.epsilon: the run takes more than {MOST_GRADIENTS:,} gradients at a site, the most that a "
                    "private one may: lower rounds or local-steps"
                ],
            )
        cast("Counted", batch if batch is not None else self.draw()).gradients += 1
        return torch.zeros_like(x), None if y is None else torch.zeros_like(y)

    def difference(
        self, here: Point, before: Point, weights: tuple[float, float] = (1.0, 1.0), estimates: Point | None = None
    ) -> tuple[Tensor, Any]:
        """Count a difference, which is one answer."""
        return self.gradient(*here)

    def full_gradient(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Any]:
        """Count a gradient over all patients."""
        return self.gradient(x, y, self.draw(self._patients))

    def balanced_gradient(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Count a gradient."""
        return self.gradient(x, None, batch)[0]

    def dual_terms(self, x: Tensor, batch: Batch | None = None) -> tuple[Tensor, Tensor]:
        """Count a sum with more noise, by default over all patients."""
        cast("Counted", batch if batch is not None else self.draw(self._patients)).gradients += DUAL_NOISE**-2
        return torch.zeros(2, len(self._start["y"])), torch.ones(2)

    def fresh(self) -> Arrays:
        """Return a head, and y."""
        return {"head": self._start["x"][HEAD:], **self._start}

    def project(self, y: Tensor) -> Tensor:
        """Return y."""
        return y

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do nothing: all objectives are alike here."""
        yield
