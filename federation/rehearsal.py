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

from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from edelweiss.federation.algorithm import phases_of
from edelweiss.federation.encoding import Encoding, decode
from edelweiss.federation.errors import StrategyError
from edelweiss.federation.player import BUFFERS, Anybody, History, Player
from edelweiss.federation.schema import Table, Vector, misfits, table
from edelweiss.federation.wire import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flwr.app import ArrayRecord

    from edelweiss.federation.algorithm import Algorithm
    from edelweiss.federation.stages import RoundContext
    from edelweiss.problems import Arrays, Problem

SHORT, STEP = 512, 64  # entries of the shortened part of one of the two short models, about; they differ by so many


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
        self._players = [play] if play.short else short
        self._answers: dict[tuple[object, bool], list[Table]] = {}  # of one phase, by what was sent
        self._place = (0, "")
        self._alike = True  # no site has been told from another so far
        self._sent: dict[tuple[int, str, History], Table] = {}  # of a round, while that is so
        # What was found to fit last, and what was answered last: known as long as somebody else keeps it.
        self._fits: tuple[object, ReferenceType[ArrayRecord] | None] = (None, None)
        self._named: tuple[ReferenceType[ArrayRecord] | None, object] = (None, None)

    def phases(self, server_round: int) -> Iterator[str]:
        """Yield the phases that take place in a round."""
        return phases_of(self.algorithm, server_round, self.rounds, self.sites)

    def sent(self, server_round: int, phase: str, site: int, named: Iterable[str] = ()) -> Iterator[Table]:
        """Yield the tables of what a site may be sent in a phase; ``named`` are the arrays of the message."""
        return map(self.encoding.table, self._played((server_round, phase), site, named))

    def misfit(self, server_round: int, phase: str, site: int, record: ArrayRecord) -> str:
        """Say why a site cannot be sent these arrays in a phase; empty: it can. Of what goes to all it is asked once.

        Whoever asks has not changed the record since.
        """
        place, (when, known) = (server_round, phase), self._fits
        if self._alike and when == place and known is not None and known() is record:
            return ""
        text = misfits(record, self.sent(server_round, phase, site, record))
        if self._alike and not text and not any("-" in name for name in record):  # "x-3": see `_played`
            self._fits = place, ref(record)
        return text

    def last(self, site: int, named: Iterable[str] = ()) -> Iterator[Table]:
        """Yield the tables of what a site may be sent for the last evaluation."""
        return self._played((self.rounds + 1, ""), site, named)

    def answered(self, context: RoundContext, sent: ArrayRecord) -> Iterator[Table]:
        """Yield the tables of what a site may answer to vectors that it was sent in a phase."""
        if (context.round, context.phase) != self._place:
            self._place, self._answers = (context.round, context.phase), {}
            for player in self._players:
                player.memory = player.after
        known, names = self._named
        if known is None or known() is not sent:
            names = tuple((name, array.dtype, tuple(array.shape)) for name, array in sent.items())
            self._named = ref(sent), names
        for keeps in (True, False):
            if (names, keeps) not in self._answers:
                self._answers[names, keeps] = self._answered(context, decode(unpack(sent)), keeps)
            yield from self._answers[names, keeps]

    def _answered(self, context: RoundContext, arrays: Arrays, keeps: bool) -> list[Table]:
        found = [self._rehearsed(lambda player: player.answered(context, arrays, keeps))]
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
        heard = {int(text) for text in numbers if text.isdecimal() and len(text) < 9}
        others = tuple(sorted(other for other in heard - {site} if other < self.sites))
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
