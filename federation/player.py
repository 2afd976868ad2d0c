"""Both halves of an algorithm, played without data: the server, one of its sites, and an oracle that has no samples."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from edelweiss.federation.algorithm import phases_of
from edelweiss.federation.errors import StrategyError
from edelweiss.federation.sites import Reply, Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor

    from edelweiss.federation.algorithm import Algorithm
    from edelweiss.federation.stages import RoundContext
    from edelweiss.problems import Arrays, Problem

BUFFERS = "buffers"
LONG = 2**14  # entries of x; a round of more takes time that counts, so two short models are played instead
KEPT = 2**20  # entries of x in states that are kept for the next round: one for each site, where sites are told apart
MOST = 1000  # rounds that are played, all of them, where a few do not explain a message


class History(NamedTuple):
    """What may have happened: whose answers the server has had, whether sites keep what they remember.

    ``whole``: whether every round is played, and not only those at which vectors mostly come and go.
    """

    answering: tuple[int, ...]
    keeps: bool = True
    whole: bool = False


@dataclass(eq=False)
class Player:
    """Plays both halves of an algorithm, on a model that lacks ``removed`` entries of every vector that is ``long``."""

    algorithm: Algorithm
    start: Arrays
    rounds: int
    sites: int
    problem: Problem | None
    head: int | None
    long: frozenset[int]
    removed: int

    def __post_init__(self) -> None:
        """Begin without anything."""
        self.memory: Arrays | None = None  # of the coordinator's site: before this phase; None: not known yet
        self.after: Arrays | None = None  # and behind it
        self._states: dict[tuple[History, int], tuple[Arrays, Arrays]] = {}
        self._oracle = cast("Any", Blank(self))

    @property
    def short(self) -> bool:
        """Whether a round takes no time that counts."""
        return bool(self.removed) or len(self.start["x"]) <= LONG

    def replays(self, r: int) -> bool:
        """Whether all rounds before one may be played."""
        return self.short and r <= MOST

    def blank(self, vector: Tensor) -> Tensor:
        """Return a vector to play with: zeros, shortened where it is long; what is no float keeps its values."""
        if vector.ndim == 1 and len(vector) in self.long and self.removed:
            return torch.zeros(len(vector) - self.removed, dtype=vector.dtype)
        if self.removed and vector.numel() > LONG:
            raise StrategyError(f"a vector of {vector.numel()} entries is none that is known")
        return torch.zeros(vector.shape, dtype=vector.dtype) if vector.is_meta else vector.cpu()

    # ------------------------------------------------------------------ the server and one site

    def sent(self, r: int, phase: str, site: int, history: History) -> Arrays:
        """Return what a site is sent in a phase; behind the last round, for the last evaluation."""
        state, memory = self._before(r, history)
        if r > self.rounds:
            model = {name: state[name] for name in ("x", "y") if name in state} | self._buffers()
            return self.algorithm.final(state, model, self._turn(self.rounds, self.algorithm.phases[-1]), _site(site))
        for played in phases_of(self.algorithm, r, self.rounds, self.sites):
            context = self._turn(r, played)
            if played == phase:
                return self.algorithm.broadcast(state, context, _site(site)) | self._buffers()
            state, memory = self._exchange(state, memory, context, history)
        raise StrategyError(f"phase = {phase!r} does not take place in round {r}")

    def remembered(self, history: History) -> Arrays:
        """Return what a site has kept at the end of one of the first rounds, of that where it is most."""
        memories = [self._before(r + 1, history)[1] for r in range(1, min(3, self.rounds) + 1)]
        return max(memories, key=lambda memory: sum(vector.numel() for vector in memory.values()))

    def _before(self, r: int, history: History) -> tuple[Arrays, Arrays]:
        """Return the server's state and a site's memory before a round.

        Whoever was there in the round before goes on from it. Others play the first two rounds, those where this stage
        begins, and the last; or all, where the ``whole`` history is asked for.
        """
        if (history, r - 1) in self._states:
            return self._states[history, r - 1]
        first = 1
        if (history, r - 2) in self._states:
            (state, memory), first = self._states[history, r - 2], r - 1
        else:
            start = {name: self.blank(vector) for name, vector in self.start.items() if name != BUFFERS}
            body = {"body": start["x"][: self._oracle.head]} if self.algorithm.splits_model else {}
            state, memory = self.algorithm.initial_state(start | body), {}
        last = min(r, self.rounds)
        begins = last - self._turn(last, self.algorithm.phases[0]).round_in_stage + 1
        for played in range(first, r) if history.whole else sorted({1, 2, begins - 1, begins, r - 1}):
            for phase in phases_of(self.algorithm, played, self.rounds, self.sites) if first <= played < r else ():
                state, memory = self._exchange(state, memory, self._turn(played, phase), history)
        if self.short:
            self._states[history, r - 1] = state, memory
            self._states.pop((history, r - 2), None)
            while len(self._states) > KEPT // len(self.start["x"]):
                del self._states[next(iter(self._states))]
        return state, memory

    def _exchange(
        self, state: Arrays, memory: Arrays, context: RoundContext, history: History
    ) -> tuple[Arrays, Arrays]:
        sent = self.algorithm.broadcast(state, context, _site(history.answering[0]))
        reply, after = self._update(sent, memory if history.keeps else {}, context)
        replies = (Reply(_site(k), {name: v.clone() for name, v in reply.items()}) for k in history.answering)
        return self.algorithm.aggregate(state, replies, context), after

    # ------------------------------------------------------------------ one site

    def answered(self, context: RoundContext, sent: Arrays, keeps: bool) -> Arrays:
        """Return what a site answers that keeps what it remembers, or has lost it."""
        came = {name: self.blank(vector) for name, vector in sent.items() if name != BUFFERS}
        if keeps and self.memory is None:  # a run that goes on: what a site remembers is from the rounds before
            self.memory = self._before(context.round, History((0,), whole=self.replays(context.round)))[1]
        reply, after = self._update(came, (self.memory or {}) if keeps else {}, context)
        if keeps:
            self.after = after
        return reply

    def _update(self, sent: Arrays, memory: Arrays, context: RoundContext) -> tuple[Arrays, Arrays]:
        """Play a site's part, with one local step: how many there are changes no name and no length."""
        return self.algorithm.local_update(sent, memory, self._oracle, replace(context, local_steps=1))

    def _turn(self, r: int, phase: str) -> RoundContext:
        return replace(self.algorithm.context(r, self.rounds, phase, self.sites), total_weight=float(self.sites))

    def _buffers(self) -> Arrays:
        return {name: vector for name, vector in self.start.items() if name == BUFFERS}


class Anybody(Site):
    """A site that notices when it is asked which one it is, and not where it is in the server's books."""

    known = False

    @property
    def slot(self) -> int:
        """The index."""
        return int(object.__getattribute__(self, "index"))

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute."""
        if name in ("index", "name", "node_id"):
            Anybody.known = True
        return super().__getattribute__(name)


def _site(index: int) -> Site:
    return Anybody(index, f"site-{index}", index + 1)


class Blank:
    """An oracle without data, see `federation.Oracle`: everything has its length, and is zero or nothing at all."""

    def __init__(self, player: Player) -> None:
        self.player, self.problem = player, player.problem
        head, d = player.head or 0, len(player.start["x"])
        self.head = head - player.removed * (head >= d - head)
        self.generator = torch.Generator().manual_seed(0)

    @property
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """Where each parameter lies in x: not known of a model that lacks some."""
        if self.player.removed:
            raise StrategyError("a shortened model has no layers")
        x = self.player.start["x"]
        return getattr(self.problem, "layers", ((slice(0, len(x)), tuple(x.shape)),))

    def draw(self, size: int | None = None) -> tuple[()]:
        """Return a batch that nobody looks into."""
        return ()

    def epoch(self) -> Iterator[tuple[()]]:
        """Yield one batch."""
        yield ()

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: object = None) -> tuple[Tensor, Tensor | None]:
        """Return zeros, as long as x and y."""
        return torch.zeros_like(x), None if y is None else torch.zeros_like(y)

    def full_gradient(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return zeros, as long as x and y."""
        return self.gradient(x, y)

    def balanced_gradient(self, x: Tensor, batch: object) -> Tensor:
        """Return zeros, as long as x."""
        return torch.zeros_like(x)

    def compositional_gradient(self, x: Tensor, s: Tensor, batch: object) -> Tensor:
        """Return zeros, as long as x."""
        return torch.zeros_like(x)

    def inner(self, x: Tensor, batch: object) -> Tensor:
        """Return zeros, as long as the inner function's value."""
        return x.new_zeros(getattr(self.problem, "inner_size", len)(x))

    def dual_terms(self, x: Tensor, batch: object = None) -> tuple[Tensor, Tensor]:
        """Return terms that can be divided by."""
        terms, p = getattr(self.problem, "terms", 1), len(self.player.blank(self.player.start["y"]))
        numerators = torch.zeros(terms, p, dtype=x.dtype)
        return numerators, torch.ones_like(numerators) if getattr(self.problem, "labels", ()) else numerators[:, 0] + 1

    def fresh(self) -> Arrays:
        """Return a head and y."""
        start = {name: self.player.blank(self.player.start[name]) for name in ("x", "y") if name in self.player.start}
        return {"head": start.pop("x")[self.head :]} | start

    def aside(self) -> AbstractContextManager[None]:
        """Do nothing: there are no statistics."""
        return nullcontext()

    def project(self, y: Tensor) -> Tensor:
        """Return a copy."""
        return y.clone()
