"""Which vectors an algorithm sends: its own two halves are played without data, and what comes out is the table.

No algorithm declares what it sends in which round. It is played on vectors of zeros, against an oracle without data. A
site plays the server too, since it knows nothing of its state. The coordinator plays a site that gets what the real
ones were sent.

So what a message may hold follows from the algorithm, its hyper-parameters, the model's size and the place in the run.
Beyond that it depends on what got lost on the way; all that can happen is played, and a message has to fit one of it.

Zeros as long as a large network would take time. So a large one is played as two short ones, which lack so many entries
of its body, or head: a length that differs between the two is that of the large one, in proportion.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch

from federation.algorithm import phases_of
from federation.encoding import Encoding, decode
from federation.errors import StrategyError
from federation.schema import Table, Vector, table
from federation.sites import Reply, Site
from federation.wire import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from flwr.app import ArrayRecord
    from torch import Tensor

    from federation.algorithm import Algorithm
    from federation.stages import Turn
    from problems import Arrays, Problem

T = TypeVar("T")

BUFFERS = "buffers"
LONG = 2**14  # entries of x; of more it is played as two short models,
SHORT, STEP = 512, 64  # whose shortened part has about so many; they differ by so many
KEPT = 2**20  # entries of x in states that are kept for the next round: one for each site, where sites are told apart
MOST = 1000  # rounds that are played, all of them, where a few do not explain a message


class History(NamedTuple):
    """What may have happened: whose answers the server has had, whether sites keep what they remember.

    ``whole``: whether every round is played, and not only those at which vectors mostly come and go.
    """

    answering: tuple[int, ...]
    keeps: bool = True
    whole: bool = False


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
    encoding : Encoding, optional
        How what is sent is written, but for the last evaluation; None: exactly.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        start: Arrays,
        rounds: int,
        sites: int,
        problem: Problem | None = None,
        head: int | None = None,
        encoding: Encoding | None = None,
    ) -> None:
        self.encoding = encoding or Encoding()
        self.algorithm, self.rounds, self.sites, self.d = algorithm, rounds, sites, len(start["x"])
        head = getattr(problem, "head", head)
        parts = (head or 0, self.d - (head or 0))
        lengths = {name: vector.detach().to("meta") for name, vector in start.items()}  # nothing of it is kept
        play = Player(algorithm, lengths, rounds, sites, problem, head, frozenset({self.d, max(parts)}), 0)
        removed = (max(parts) - SHORT) // STEP * STEP
        short = [replace(play, removed=removed), replace(play, removed=removed - STEP)]
        self._whole = play
        self._players = short if self.d > LONG else [play]
        self._answers: dict[tuple[object, bool], list[Table]] = {}  # of one phase, by what was sent
        self._place = (0, "")
        self._alike = True  # no site has been told from another so far
        self._sent: dict[tuple[int, str, History], Table] = {}  # of a round, while that is so

    def phases(self, server_round: int) -> Iterator[str]:
        """Yield the phases that take place in a round."""
        return phases_of(self.algorithm, server_round, self.rounds, self.sites)

    def sent(self, server_round: int, phase: str, site: int, named: Iterable[str] = ()) -> Iterator[Table]:
        """Yield the tables of what a site may be sent in a phase; ``named`` are the arrays of the message."""
        return map(self.encoding.table, self._played((server_round, phase), site, named))

    def last(self, site: int, named: Iterable[str] = ()) -> Iterator[Table]:
        """Yield the tables of what a site may be sent for the last evaluation."""
        return self._played((self.rounds + 1, ""), site, named)

    def answered(self, turn: Turn, sent: ArrayRecord) -> Iterator[Table]:
        """Yield the tables of what a site may answer to vectors that it was sent in a phase."""
        if (turn.round, turn.phase) != self._place:
            self._place, self._answers = (turn.round, turn.phase), {}
            for player in self._players:
                player.memory = player.after
        names = tuple((name, array.dtype, tuple(array.shape)) for name, array in sent.items())
        for keeps in (True, False):
            if (names, keeps) not in self._answers:
                self._answers[names, keeps] = self._answered(turn, decode(unpack(sent)), keeps)
            yield from self._answers[names, keeps]

    def _answered(self, turn: Turn, arrays: Arrays, keeps: bool) -> list[Table]:
        found = [self._rehearsed(lambda player: player.answered(turn, arrays, keeps))]
        if BUFFERS in arrays:  # statistics come back where they are averaged, and something has changed them
            found.append(found[0] | table({BUFFERS: arrays[BUFFERS]}))
        return [self.encoding.table(one) for one in found]

    def remembered(self) -> Table:
        """Return the table of what a site keeps for its next round."""
        return self._rehearsed(lambda player: player.remembered(History((0,))))

    def _played(self, place: tuple[int, str], site: int, named: Iterable[str]) -> Iterator[Table]:
        """Yield what is sent after each history: at first that nothing got lost."""
        # A vector of one site, and no average, bears that site's number: "x-3".
        numbers = {name.rpartition("-")[2] for name in named if "-" in name}
        heard = {int(text) for text in numbers if text.isdecimal() and len(text) < 9} & set(range(self.sites)) - {site}
        others = tuple(sorted(heard))
        usual = History(tuple(sorted({*others, site})))
        yield self._after(place, site, usual)
        without = History(others or ((site + 1) % self.sites,))
        whole = [usual._replace(whole=True)] * self._players[0].replays(place[0])
        for history in (usual._replace(keeps=False), without, *whole):
            try:
                yield self._after(place, site, history)
            except StrategyError:  # this algorithm cannot get there
                continue

    def _after(self, place: tuple[int, str], site: int, history: History) -> Table:
        """Return what is sent after a history; the same to all sites, until the algorithm asks which one it is."""
        if not self._alike:
            return self._rehearsed(lambda player: player.sent(*place, site, history))
        first = history._replace(answering=(*range(len(history.answering)),))
        if (key := (*place, first)) not in self._sent:
            Anybody.known = False
            found = self._rehearsed(lambda player: player.sent(*place, 0, first))
            self._alike = not Anybody.known
            if not self._alike:
                return self._after(place, site, history)
            self._sent = {known: table for known, table in self._sent.items() if known[0] == place[0]} | {key: found}
        return self._sent[key]

    def _rehearsed(self, play: Callable[[Player], Arrays]) -> Table:
        try:
            return self._large([table(play(player)) for player in self._players])
        except Exception as error:
            if self._players != [self._whole]:  # it looks at more than lengths
                self._players = [self._whole]
                return self._rehearsed(play)
            if isinstance(error, StrategyError):
                raise
            text = f"algorithm = {self.algorithm.name!r} cannot be played without data, so nobody can say what it sends"
            raise StrategyError(f"{text} ({type(error).__name__}: {error})") from error

    def _large(self, tables: list[Table]) -> Table:
        """Return the table of the model itself, given that of one or two that are shorter."""
        if len(tables) == 1:
            return tables[0]
        shorter, longer = tables
        found: Table = {}
        for name, vector in shorter.items():
            pairs = zip(vector.shape, longer[name].shape, strict=True)
            shape = tuple(short + (long - short) * self._players[0].removed // STEP for short, long in pairs)
            found[name] = Vector(shape, vector.dtype)
        return found


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
            turn = self._turn(r, played)
            if played == phase:
                return self.algorithm.broadcast(state, turn, _site(site)) | self._buffers()
            state, memory = self._exchange(state, memory, turn, history)
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

    def _exchange(self, state: Arrays, memory: Arrays, turn: Turn, history: History) -> tuple[Arrays, Arrays]:
        sent = self.algorithm.broadcast(state, turn, _site(history.answering[0]))
        reply, after = self._update(sent, memory if history.keeps else {}, turn)
        replies = (Reply(_site(k), {name: v.clone() for name, v in reply.items()}) for k in history.answering)
        return self.algorithm.aggregate(state, replies, turn), after

    # ------------------------------------------------------------------ one site

    def answered(self, turn: Turn, sent: Arrays, keeps: bool) -> Arrays:
        """Return what a site answers that keeps what it remembers, or has lost it."""
        came = {name: self.blank(vector) for name, vector in sent.items() if name != BUFFERS}
        if keeps and self.memory is None:  # a run that goes on: what a site remembers is from the rounds before
            self.memory = self._before(turn.round, History((0,), whole=self.replays(turn.round)))[1]
        reply, after = self._update(came, (self.memory or {}) if keeps else {}, turn)
        if keeps:
            self.after = after
        return reply

    def _update(self, sent: Arrays, memory: Arrays, turn: Turn) -> tuple[Arrays, Arrays]:
        """Play a site's part, with one local step: how many there are changes no name and no length."""
        return self.algorithm.local_update(sent, memory, self._oracle, replace(turn, local_steps=1))

    def _turn(self, r: int, phase: str) -> Turn:
        return replace(self.algorithm.turn(r, self.rounds, phase, self.sites), total_weight=float(self.sites))

    def _buffers(self) -> Arrays:
        return {name: vector for name, vector in self.start.items() if name == BUFFERS}


class Anybody(Site):
    """A site that notices when it is asked which one it is."""

    known = False

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
