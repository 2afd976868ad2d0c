"""The messages of one run: its algorithm's table (`federation.table`) with lengths, by phase and round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, product
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from edelweiss.federation.algorithm import Algorithm, phases_of
from edelweiss.federation.encoding import Encoding
from edelweiss.federation.errors import StrategyError
from edelweiss.federation.schema import DTYPES, Shapes, Vector, misfits, shapes_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flwr.app import ArrayRecord

    from edelweiss.federation.stages import RoundContext
    from edelweiss.federation.table import Lengths, Row, Way
    from edelweiss.problems import Arrays, Problem

BUFFERS = "buffers"  # batch-norm statistics: they travel with every algorithm's vectors


@dataclass(frozen=True)
class Case:
    """The vectors sent one way in rounds and phases with the same table rows."""

    rows: list[Row]  # the rows of the table that apply
    relays: bool  # whether a row is relayed, so that shapes depend on the site
    # decoded, encoded: the allowed shapes, the usual first; if a row is relayed, those of a site without neighbours
    decoded: list[Shapes]
    encoded: list[Shapes]


class RunMessages:
    """The vectors of a run's messages: names, shapes and types.

    Parameters
    ----------
    algorithm : Algorithm
        Declares its table.
    start : Arrays
        The starting model: x, and y and buffers where there are any. Only their lengths and types matter.
    rounds, sites : int
        R and K.
    problem : Problem, optional
        Tells what it can do beyond gradients, see `problems.capabilities`.
    head : int, optional
        Where the head begins in x, if no problem says so.
    encoding : Encoding, optional
        How vectors are written, except for the last evaluation; None: exactly.

    Attributes
    ----------
    d : int
        Parameters of the model.
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
        self.algorithm, self.rounds, self.sites = algorithm, rounds, sites
        self.encoding = encoding or Encoding()
        self._start = shapes_of(start)
        self._buffers = {name: vector for name, vector in self._start.items() if name == BUFFERS}
        self.d = len(start["x"])
        head = getattr(problem, "head", head) or 0
        terms = (getattr(problem, "terms", 1),)
        p = self._start["y"].shape if "y" in start else (0,)
        self._sizes: dict[str, tuple[int, ...]] = {
            "d": (self.d,),
            "p": p,
            "b": (head,),
            "h": (self.d - head,),
            "n": (len(getattr(problem, "norms", ())),),
            "i": (getattr(problem, "inner_size", len)(start["x"]),),
            "t": terms,
            "c": terms + p if getattr(problem, "labels", ()) else terms,
        }
        self._sizes |= {s: (n,) for s, n in algorithm.lengths(self.d, getattr(problem, "layers", ())).items()}
        self._conditional = [row for row in algorithm.messages.rows if row.when]
        self._place: tuple[RoundContext | None, tuple[object, ...]] = (None, ())
        self._cases: dict[object, Case] = {}
        self._fits: tuple[RoundContext | None, ReferenceType[ArrayRecord] | None] = (None, None)

    def context(self, server_round: int, phase: str) -> RoundContext:
        """Return the context of a phase."""
        return self.algorithm.context(server_round, self.rounds, phase, self.sites)

    # ------------------------------------------------------------------ the allowed vectors

    def down(self, context: RoundContext, site: int = 0, names: Iterable[str] = ()) -> list[Shapes]:
        """Return the shapes allowed down in a phase, the usual first; ``names`` are those of the received arrays."""
        case = self._case("down", context)
        if case.relays:
            return self._encoded("down", self._allowed(case.rows, context, site, names))
        return case.encoded

    def up(self, context: RoundContext) -> list[Shapes]:
        """Return the shapes allowed up in a phase, the usual first."""
        return self._case("up", context).encoded

    def summed(self, context: RoundContext, *, buffers: bool) -> Shapes:
        """Return the shapes of what is summed in a phase, with the batch-norm statistics if these are averaged."""
        return self._case("up", context).decoded[0] | (self._buffers if buffers else {})

    def groups(self, context: RoundContext) -> list[Iterable[str]]:
        """Return the names of a reply's vectors, row by row, and of the batch-norm statistics."""
        return [*(row.vectors for row in self._case("up", context).rows), (BUFFERS,)]

    def kept(self, context: RoundContext) -> Shapes:
        """Return the shapes of a site's memory after a phase."""
        return self._case("kept", context).decoded[0]

    def final(self, site: int = 0, names: Iterable[str] = ()) -> list[Shapes]:
        """Return the shapes allowed down for the final evaluation, which is not quantised."""
        context = replace(self.context(self.rounds, self.algorithm.phases[-1]), round=self.rounds + 1)
        case = self._case("final", context)
        return self._allowed(case.rows, context, site, names) if case.rows else [self._start]

    def between_rounds(self) -> Shapes:
        """Return the shapes of a site's memory between rounds: the largest of the first three rounds."""
        ends: list[Shapes] = []
        for r in range(1, min(3, self.rounds) + 1):
            *_, last = phases_of(self.algorithm, r, self.rounds, self.sites)
            ends.append(self.kept(self.context(r, last)))
        return max(ends, key=lambda shapes: sum(vector.bytes for vector in shapes.values()))

    # ------------------------------------------------------------------ checks

    def misfit(self, context: RoundContext, site: int, record: ArrayRecord) -> str:
        """Return why a phase's message may not contain these arrays; empty if it may.

        Cached for vectors common to all sites; the record must not be mutated.
        """
        place, known = self._fits
        if known is not None and known() is record and place == context:
            return ""
        text = misfits(record, self.down(context, site, record))
        if not text and not self._case("down", context).relays:
            self._fits = context, ref(record)
        return text

    def require_declared(self, way: Way, arrays: Arrays, context: RoundContext, site: int = 0) -> None:
        """Check the vectors that a hook of the algorithm returned against its table.

        Raises
        ------
        StrategyError
            Naming each vector that the table lacks or declares differently, and the fix.
        """
        found, case = shapes_of(arrays), self._case(way, context)
        declared = self._allowed(case.rows, context, site, arrays) if case.relays else case.decoded
        if found in declared:
            return
        usual = min(declared, key=lambda one: len(found.items() ^ one.items()))
        later = way == "down" and context.round > 1
        wrong = [self._undeclared(way, name, vector, later) for name, vector in found.items() if name not in usual]
        if wrong and later and type(self.algorithm).broadcast is Algorithm.broadcast:
            wrong.append("or override `broadcast`: the default sends the whole state, as `aggregate` returned it")
        for name, vector in usual.items():
            if name not in found:
                wrong.append(f"{name!r} is declared ({way}) and missing: return it, or give its row a condition")
            elif found[name] != vector:
                wrong.append(f"{name!r} is {found[name]}, and {vector} in the table")
        kind = type(self.algorithm).__name__
        where = f"in round {context.round}, phase {context.phase!r}"
        raise StrategyError(
            f"algorithm = {self.algorithm.name!r}: `messages` of class {kind} is not what it does {where}: "
            + "; ".join(wrong)
        )

    def _undeclared(self, way: Way, name: str, vector: Vector, later: bool) -> str:
        """Describe a vector that no row declares, with the row to add; ``later`` if round 1 went without it."""
        alike = [symbol for symbol in "dpbhi" if self._sizes[symbol] == vector.shape]
        length = " ".join(alike[:1] or map(str, vector.shape))
        if vector.dtype != self._start["x"].dtype:
            length = " ".join([vector.dtype, *map(str, vector.shape)])
        written = f'{name}="{length}"' if name.isidentifier() else f'**{{"{name}": "{length}"}}'
        return f"{name!r}, {vector}, is in no row: add {way}({'LATER, ' * later}{written})"

    # ------------------------------------------------------------------ the table, with lengths

    def _case(self, way: Way, context: RoundContext) -> Case:
        """Return the vectors of a phase, resolved once per set of applicable rows."""
        known, place = self._place
        if known is not context:
            holds = [row.holds(self.algorithm, context) for row in self._conditional]
            self._place = context, (place := (context.phase, *holds))
        if (case := self._cases.get((way, place))) is None:
            rows = [row for row in self.algorithm.messages.of(way) if row.holds(self.algorithm, context)]
            decoded = self._allowed(rows, context)
            case = Case(rows, any(row.relays for row in rows), decoded, self._encoded(way, decoded))
            self._cases[way, place] = case
        return case

    def _encoded(self, way: Way, declared: list[Shapes]) -> list[Shapes]:
        """Return the shapes on the wire, with batch-norm statistics; a site returns these only if changed."""
        more = [self._buffers] if way == "down" or not self._buffers else [{}, self._buffers]
        return [self.encoding.shapes(one | buffers) for one in declared for buffers in more]

    def _allowed(
        self, rows: list[Row], context: RoundContext, site: int = 0, names: Iterable[str] = ()
    ) -> list[Shapes]:
        """Return the shapes that rows allow: the usual first, then those after a loss."""
        choices: list[list[Shapes]] = []
        for row in rows:
            usual = self._relayed(row.vectors, context, site, names) if row.relays else self._shapes(row.vectors)
            choices.append([usual, *map(self._shapes, row.lost)])
        found: list[Shapes] = []
        for parts in product(*choices):
            one = {name: vector for part in parts for name, vector in part.items()}
            if one not in found:
                found.append(one)
        return found

    def _relayed(self, vectors: Lengths, context: RoundContext, site: int, names: Iterable[str]) -> Shapes:
        """Return the shapes of the received vectors of neighbours, "x-3", and of the site's own, which are empty."""
        numbers = {int(text) for name in names if (text := name.rpartition("-")[2]).isdecimal() and len(text) < 9}
        mixed = sorted({site} | numbers.intersection(self.algorithm.neighbours(site, context)))
        shapes = self._shapes(vectors)
        if len(mixed) == 1:  # without neighbours, it receives its own
            return shapes
        found: Shapes = {"weights": Vector((len(mixed),), "float64")}
        for name, vector in shapes.items():
            found |= {f"{name}-{j}": vector._replace(shape=(0,)) if j == site else vector for j in mixed}
        return found

    def _shapes(self, lengths: Lengths) -> Shapes:
        """Return the shapes of vectors; those of y's length exist only with a y."""
        found: Shapes = {}
        for name, length in lengths.items():
            first, *others = length.split()
            dtype, symbols = (first, others) if first in DTYPES else (self._start["x"].dtype, [first, *others])
            if "p" not in symbols or "y" in self._start:
                axes = ((int(symbol),) if symbol.isdecimal() else self._sizes[symbol] for symbol in symbols)
                found[name] = Vector(tuple(chain.from_iterable(axes)), dtype)
        return found
