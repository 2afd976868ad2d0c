"""Drives the two halves of an algorithm over some rounds, with oracles whose batches are given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edelweiss.client_app.oracle import SiteOracle
from edelweiss.client_app.stacked_oracle import rows_of
from edelweiss.client_app.vectorised import _row, _shapes
from edelweiss.federation import (
    Differences,
    FederatedStrategy,
    Oracle,
    Reply,
    RoundContext,
    Site,
    pack,
    unpack,
)
from edelweiss.problems import Setting
from tests.problems.example import GivenSaddle, given_saddle
from tests.reference.games import RegressionGame

Arrays = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]
WATCHED = 10  # rounds in which `drive` looks whether a half writes to what it was given

Layers = Sequence[tuple[slice, tuple[int, ...]]]

Given = dict[int, tuple[Arrays, Arrays]]
"""Of each site: what it is sent and what it remembers; or its reply and what it remembers then."""

OpenOracle = Callable[[int, int], Oracle]
"""(site, round) → the oracle of that site in that round."""


class RegressionOracle(Differences):
    """One client of a `RegressionGame` in one round: its gradients in torch, without autograd, which takes far longer.

    Attributes
    ----------
    points : list of (x, y)
        Where gradients were asked for.
    """

    def __init__(self, game: RegressionGame, site: int, server_round: int) -> None:
        self.game, self.site, self.round, self.step = game, site, server_round, 0
        self.points: list[tuple[Tensor, Tensor | None]] = []

    def draw(self, size: int | None = None) -> Batch:
        rows = self.game.rows(self.site, self.round, self.step)
        self.step += 1
        return self.batch(rows)

    def epoch(self) -> Iterator[Batch]:
        self.step += 1
        return map(self.batch, self.game.epoch(self.site, self.round, self.step - 1))

    def batch(self, rows: np.ndarray) -> Batch:
        data = np.column_stack([self.game.features[self.site][rows], self.game.couplings[self.site][rows]])
        return torch.from_numpy(data), torch.from_numpy(self.game.targets[self.site][rows])

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Tensor | None]:
        self.points.append((x.clone(), None if y is None else y.clone()))
        data, targets = batch if batch is not None else self.draw()
        features, couplings = data[:, : self.game.primal], data[:, self.game.primal :]
        residuals = features @ x - targets
        if y is None:
            return features.T @ residuals / len(targets), None
        return features.T @ (residuals + couplings @ y) / len(targets), couplings.T @ residuals / len(targets) - y

    def full_gradient(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.gradient(x, y, self.batch(np.arange(self.game.size)))

    def project(self, y: Tensor) -> Tensor:
        return y.clamp(min=0) if self.game.clip else y


class Parted:
    """An oracle of a closed form, with what algorithms ask of a network: layers, a first head of the site's own, ..."""

    def __init__(self, oracle: Any, start: Arrays, site: int, head: int, layers: Layers = ()) -> None:
        self.oracle, self.start, self.site, self.head, self.layers = oracle, start, site, head, layers
        self.generator, self.norms = torch.Generator().manual_seed(site), torch.tensor([1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.oracle, name)

    def fresh(self) -> Arrays:
        head = self.start["x"][self.head :]
        return {"head": head + torch.linspace(0, 0.3 * self.site, len(head))} | {
            n: v for n, v in self.start.items() if n == "y"
        }

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def balanced_gradient(self, x: Tensor, batch: Batch | None) -> Tensor:
        return self.oracle.gradient(x, None, batch)[0]


def parted(oracles: OpenOracle, start: Arrays, head: int, layers: Layers = ()) -> OpenOracle:
    """Return the same oracles with a head and layers."""
    return lambda site, server_round: Parted(oracles(site, server_round), start, site, head, layers)  # type: ignore[return-value]


def saddle_oracles(slopes: np.ndarray, offsets: np.ndarray) -> OpenOracle:
    """Return the product's own oracles of the saddle problem, in float64."""
    problems = [given_saddle(slopes, offsets, site) for site in range(len(slopes))]
    return lambda site, server_round: SiteOracle(problems[site], None, None, torch.Generator())


@dataclass(eq=False, kw_only=True)
class SaddleRows(GivenSaddle):
    """The saddle problems of several sites as one: x and y have a row for each."""

    def __post_init__(self) -> None:
        slopes, offsets = self.t, self.b
        super().__post_init__()
        self.t, self.b = torch.from_numpy(slopes)[:, None], torch.from_numpy(offsets)

    def dual_terms(self, x: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        """Return those of each row."""
        terms = self.b - self.t * x
        return terms[:, None], torch.ones_like(self.t)


class SideBySide:
    """The saddle problem's oracles: of a site, or of many as one, whose vectors have a row for each.

    What takes thousands of steps takes a tenth of the time with the second kind, where an algorithm ``stacks``.
    """

    def __init__(self, slopes: np.ndarray, offsets: np.ndarray) -> None:
        self.slopes, self.offsets, self.alone = slopes, offsets, saddle_oracles(slopes, offsets)
        self.opened = cache(self._opened)

    def __call__(self, site: int, server_round: int) -> Oracle:
        return self.alone(site, server_round)

    def _opened(self, sites: tuple[int, ...]) -> Oracle:
        of = list(sites)
        rows = SaddleRows(Setting(sites=len(of), dtype=torch.float64), t=self.slopes[of], b=self.offsets[of])
        return SiteOracle(rows, None, None, torch.Generator())

    def updated(self, strategy: FederatedStrategy, given: Given, context: RoundContext) -> Given:
        """Do the local updates of all sites that were given vectors of the same names and shapes at once."""
        kinds: dict[Hashable, list[int]] = {}
        for k, (sent, memory) in given.items():
            kinds.setdefault((_shapes(sent), _shapes(memory)), []).append(k)
        found: Given = {}
        for sites in kinds.values():
            sent, memory = (rows_of([given[k][part] for k in sites]) for part in (0, 1))
            reply, memory = strategy.local_update(sent, memory, self.opened(tuple(sites)), context)
            found |= {k: (_row(reply, row), _row(memory, row)) for row, k in enumerate(sites)}
        return found


def regression_oracles(game: RegressionGame) -> OpenOracle:
    """Return oracles of a game whose batches depend on site, round and step."""
    return lambda site, server_round: RegressionOracle(game, site, server_round)


def drive(
    strategy: FederatedStrategy,
    start: Arrays,
    oracles: OpenOracle,
    rounds: int,
    sites: int,
    *,
    weights: Sequence[float] | None = None,
    participants: Sequence[Collection[int]] | None = None,
    silent: Collection[tuple[int, int]] = (),
    lost: Collection[tuple[int, int]] = (),
    wire: bool = False,
    memories: list[dict[int, Arrays]] | None = None,
) -> list[Arrays]:
    """Return the server's state after each round.

    Parameters
    ----------
    weights : sequence of float, optional
        Of the sites in averages.
    participants : sequence of collections of int, optional
        Who is asked in each round; default: everybody.
    silent, lost : collection of (round, site)
        Whose message never arrives; whose memory is gone when it does.
    wire : bool
        Whether all vectors are packed and unpacked between the halves, and in the memory.
    memories : list, optional
        Gets what the sites remember after each phase.
    """
    everybody = [Site(k, f"site-{k}", k + 1, 1.0 if weights is None else weights[k]) for k in range(sites)]
    kept: dict[int, Arrays] = {k: {} for k in range(sites)}
    total = sum(site.weight for site in everybody)
    through = (lambda arrays: unpack(pack(arrays))) if wire else dict
    body = {"body": start["x"][: oracles(0, 1).head]} if strategy.splits_model else {}
    state = strategy.initial_state(start | body)
    history: dict[int, Arrays] = {}
    turns = [strategy.context(r, rounds, phase, sites) for r in range(1, rounds + 1) for phase in strategy.phases]
    for context in turns:  # what a client knows; the server also knows the weights
        if not strategy.plays(context):
            continue
        r, server_turn = context.round, replace(context, total_weight=total)
        asked = range(sites) if participants is None else sorted(participants[r - 1])

        given = {
            k: (
                through(strategy.broadcast(state, server_turn, everybody[k])),
                {} if (r, k) in lost else through(kept[k]),
            )
            for k in asked
            if (r, k) not in silent
        }
        vectors = [vector for both in given.values() for part in both for vector in part.values()]
        before = [(vector, vector.clone()) for vector in vectors] if r <= WATCHED else []
        if isinstance(oracles, SideBySide) and strategy.stacks:
            done = oracles.updated(strategy, given, context)
        else:
            done = {k: strategy.local_update(*both, oracles(k, r), context) for k, both in given.items()}
        assert all(torch.equal(now, then) for now, then in before), "a client half wrote to what it was given"
        kept |= {k: memory for k, (_, memory) in done.items()}
        replies = [Reply(everybody[k], through(done[k][0])) for k in given]
        before = [(vector, vector.clone()) for vector in state.values()] if r <= WATCHED else []
        new = strategy.aggregate(state, iter(replies), server_turn)  # replies can be read once, as in a run
        assert all(torch.equal(now, then) for now, then in before), "the server half wrote to the state it was given"
        state = new
        history[r] = dict(state)
        if memories is not None:
            memories.append(dict(kept))
    return list(history.values())
