"""Which vectors an algorithm sends: its own two halves are played without data, and what comes out is the table.

No algorithm declares what it sends in which round. It is played on vectors that have a length and no values (PyTorch's
"meta" device; where an algorithm looks at values, on zeros), against an oracle without data. A site plays the server
too, since it knows nothing of its state. The coordinator plays a site that gets what the real ones were sent.

So what a message may hold follows from the algorithm, its hyper-parameters, the model's size and the place in the run.
Beyond that it depends on what got lost on the way; all that can happen is played, and a message has to fit one of it.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from federation.errors import StrategyError
from federation.schema import Table, Vector, table
from federation.sites import Reply, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor

    from federation.algorithm import Algorithm
    from federation.stages import Turn
    from problems import Arrays, Problem

T = TypeVar("T")

BUFFERS = "buffers"
LONG = 2**14  # numbers; zeros of shorter vectors cost no more than the call
KEPT = 64  # states that are kept for the next round

History = tuple[tuple[int, ...], bool]
"""Whose answers the server has had, and whether sites keep what they remember."""


@dataclass
class Rehearsal:
    """An algorithm, played without data.

    Parameters
    ----------
    algorithm : Algorithm
        Its halves are called.
    start : Arrays
        The starting model: x, and y and buffers where there are such. Only their lengths and types matter.
    rounds, sites : int
        R and K.
    problem : Problem, optional
        Tells what it can do beyond gradients, see `problems.capabilities`.
    head : int, optional
        Where the head begins in x, if no problem says so.
    """

    algorithm: Algorithm
    start: Arrays
    rounds: int
    sites: int
    problem: Problem | None = None
    head: int | None = None

    def __post_init__(self) -> None:
        """Keep lengths and types of the start only."""
        self.head = getattr(self.problem, "head", self.head)
        self._device = "cpu" if len(self.start["x"]) <= LONG else "meta"
        self.start = {name: vector.detach().to("meta") for name, vector in self.start.items()}
        self._states: dict[tuple[History, int], tuple[Arrays, Arrays]] = {}
        self._answers: dict[tuple[tuple[str, Vector], ...], list[Table]] = {}  # of one phase
        self._place = (0, "")
        self._memory: Arrays = {}  # of the coordinator's site: before this phase,
        self._after: Arrays = {}  # and behind it

    # ------------------------------------------------------------------ what a site may be sent

    def sent(self, server_round: int, phase: str, site: int, named: Iterable[str] = ()) -> Iterator[Table]:
        """Yield the tables of what a site may be sent in a phase; ``named`` are the arrays of the message."""
        yield from self._played(site, named, lambda history: self._broadcast(server_round, phase, site, history))

    def last(self, site: int, named: Iterable[str] = ()) -> Iterator[Table]:
        """Yield the tables of what a site may be sent for the last evaluation."""
        yield from self._played(site, named, lambda history: self._final(site, history))

    def _played(self, site: int, named: Iterable[str], play: Callable[[History], Arrays]) -> Iterator[Table]:
        """Yield what comes of each history: at first that nothing got lost."""
        # A vector of one site, and no average, bears that site's number: "x-3".
        numbers = {name.rpartition("-")[2] for name in named if "-" in name}
        heard = {int(text) for text in numbers if text.isdecimal() and len(text) < 9} & set(range(self.sites)) - {site}
        others = tuple(sorted(heard))
        usual = tuple(sorted({*others, site}))
        yield self._rehearsed(lambda: table(play((usual, True))))
        for history in ((usual, False), (others or ((site + 1) % self.sites,), True)):
            try:
                yield self._rehearsed(lambda history=history: table(play(history)))  # type: ignore[misc]
            except StrategyError:  # this algorithm cannot get there
                continue

    def _broadcast(self, r: int, phase: str, site: int, history: History) -> Arrays:
        state, memory = self._before(r, history)
        for played in self.phases(r):
            turn = self._turn(r, played)
            if played == phase:
                return self.algorithm.broadcast(state, turn, _site(site)) | self._buffers()
            state, memory = self._exchange(state, memory, turn, history)
        raise StrategyError(f"phase = {phase!r} does not take place in round {r}")

    def _final(self, site: int, history: History) -> Arrays:
        state, _ = self._before(self.rounds + 1, history)
        model = {name: state[name] for name in ("x", "y") if name in state} | self._buffers()
        return self.algorithm.final(state, model, self._turn(self.rounds, self.algorithm.phases[-1]), _site(site))

    def _before(self, r: int, history: History) -> tuple[Arrays, Arrays]:
        """Return the server's state and a site's memory before a round.

        Whoever was there in the round before goes on from it. Others play the first two rounds, those where this stage
        begins, and the last: what a server comes to have later than that would be missing.
        """
        if (history, r - 1) in self._states:
            return self._states[history, r - 1]
        start = {name: self._blank(vector) for name, vector in self.start.items() if name != BUFFERS}
        body = {"body": start["x"][: self.head]} if self.algorithm.splits_model else {}
        state, memory, first = self.algorithm.initial_state(start | body), cast("Arrays", {}), 1
        if (history, r - 2) in self._states:
            (state, memory), first = self._states[history, r - 2], r - 1
        begins = min(r, self.rounds) - self._turn(min(r, self.rounds), self.algorithm.phases[0]).round_in_stage + 1
        for played in sorted({1, 2, begins - 1, begins, r - 1}):
            for phase in self.phases(played) if first <= played < r else ():
                state, memory = self._exchange(state, memory, self._turn(played, phase), history)
        if self._device == "meta" or len(self.start["x"]) <= LONG:
            self._states[history, r - 1] = state, memory
            while len(self._states) > KEPT:
                del self._states[next(iter(self._states))]
        return state, memory

    def _exchange(self, state: Arrays, memory: Arrays, turn: Turn, history: History) -> tuple[Arrays, Arrays]:
        answering, keeps = history
        sent = self.algorithm.broadcast(state, turn, _site(answering[0]))
        reply, after = self._update(sent, memory if keeps else {}, turn)
        replies = (Reply(_site(k), {name: vector.clone() for name, vector in reply.items()}) for k in answering)
        return self.algorithm.aggregate(state, replies, turn), after

    # ------------------------------------------------------------------ what a coordinator may be answered

    def answered(self, turn: Turn, sent: Arrays) -> list[Table]:
        """Return the tables of what a site may answer to vectors that it was sent in a phase."""
        if (turn.round, turn.phase) != self._place:
            self._place, self._memory, self._answers = (turn.round, turn.phase), self._after, {}
        key = tuple(table(sent).items())
        if key not in self._answers:
            self._answers[key] = self._rehearsed(lambda: self._answer(turn, sent))
        return self._answers[key]

    def _answer(self, turn: Turn, sent: Arrays) -> list[Table]:
        came = {name: self._blank(vector) for name, vector in sent.items() if name != BUFFERS}
        kept, self._after = self._update(came, self._memory, turn)
        anew, _ = self._update(came, {}, turn)
        found = [table(kept), table(anew)]
        if BUFFERS in sent:  # statistics come back where they are averaged, and something has changed them
            found += [one | table({BUFFERS: sent[BUFFERS]}) for one in found]
        return found

    # ------------------------------------------------------------------ both

    def phases(self, server_round: int) -> Iterator[str]:
        """Yield the phases that take place in a round."""
        return self.algorithm.played(server_round, self.rounds, self.sites)

    def _turn(self, r: int, phase: str) -> Turn:
        return replace(self.algorithm.turn(r, self.rounds, phase, self.sites), total_weight=float(self.sites))

    def _update(self, sent: Arrays, memory: Arrays, turn: Turn) -> tuple[Arrays, Arrays]:
        """Play a site's part, with one local step: how many there are changes no name and no length."""
        oracle = cast("Any", Blank(self.problem, self.head, self.start, self._blank))
        return self.algorithm.local_update(sent, memory, oracle, replace(turn, local_steps=1))

    def _buffers(self) -> Arrays:
        return {name: vector for name, vector in self.start.items() if name == BUFFERS}

    def _blank(self, vector: Tensor) -> Tensor:
        """Return a vector as it is played with: a long one has no values."""
        if self._device == "meta" and vector.is_floating_point() and vector.numel() > LONG:
            return vector.to("meta")
        return torch.zeros_like(vector, device="cpu") if vector.is_meta else vector.cpu()

    def _rehearsed(self, play: Callable[[], T]) -> T:
        try:
            return play()
        except Exception as error:
            if self._device == "meta":  # it looked at a value
                self._device, self._memory, self._after = "cpu", {}, {}
                self._states.clear()
                return self._rehearsed(play)
            if isinstance(error, StrategyError):
                raise
            text = f"algorithm = {self.algorithm.name!r} cannot be played without data, so nobody can say what it sends"
            raise StrategyError(f"{text} ({type(error).__name__}: {error})") from error


def _site(index: int) -> Site:
    return Site(index, f"site-{index}", index + 1)


class Blank:
    """An oracle without data, see `federation.Oracle`: everything has its length, and is zero or nothing at all."""

    def __init__(
        self, problem: Problem | None, head: int | None, start: Arrays, blank: Callable[[Tensor], Tensor]
    ) -> None:
        self.problem, self.start, self.blank = problem, start, blank
        self.head = head or 0
        self.layers = getattr(problem, "layers", ((slice(0, len(start["x"])), tuple(start["x"].shape)),))
        self.generator = torch.Generator().manual_seed(0)

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
        terms, p = getattr(self.problem, "terms", 1), self.start["y"].shape[0]
        return torch.zeros(terms, p, dtype=x.dtype), torch.ones(terms, dtype=x.dtype)

    def fresh(self) -> Arrays:
        """Return a head and y."""
        own = {"head": self.blank(self.start["x"])[self.head :]}
        return own | {name: self.blank(vector) for name, vector in self.start.items() if name == "y"}

    def aside(self) -> AbstractContextManager[None]:
        """Do nothing: there are no statistics."""
        return nullcontext()

    def project(self, y: Tensor) -> Tensor:
        """Return a copy."""
        return y.clone()
