"""The table of an algorithm's messages: the vectors sent down to a site, up from it, and kept there.

An algorithm declares it as its class variable ``messages``, for example::

    messages = Table(
        both(x="d", y="p"),
        both(IN_STAGE, cx="d", cy="p", estimate=True, of="control variates"),
        down(given("gamma"), IN_STAGE, x_ref="d"),
        kept(ckx="d", cky="p", round=COUNT, of="control variates"),
    )

A row has conditions and vectors with their lengths. The checks on both sides, the traffic, the size of a site's memory,
the vectors that may be rounded, and the docs all follow from the table; `federation.run_messages` resolves it for a
run.

A length is a symbol or a number for each axis, after the type if that is not x's ("uint8 m"):

======  ==============================================================================
``d``   all of x, the parameters
``p``   y, the dual variable; without one, the vector does not exist
``b``   the body of x, before the head
``h``   the head of x
``n``   the scales and shifts of batch norm in x
``i``   the value of an inner function (`problems.capabilities.InnerFunction`)
``t``   the terms of a `problems.capabilities.ClosedFormDual`, and ``c`` its denominators
======  ==============================================================================

`Algorithm.lengths` may add others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from edelweiss.federation.algorithm import Algorithm
    from edelweiss.federation.stages import RoundContext

COUNT = "int64 1"
"""The length of an integer: a round, a number of steps."""

Lengths = Mapping[str, str]
"""Lengths of vectors, by name."""

Way = Literal["down", "up", "kept", "final"]
Use = Literal["summed", "relayed", "in the clear"]


@dataclass(frozen=True)
class When:
    """A condition of a row: in words for the docs, and as a function of algorithm and context."""

    words: str
    holds: Callable[[Any, RoundContext], bool]


LATER = When("past the first round", lambda algorithm, context: context.round > 1)
IN_STAGE = When("past the first round of a stage", lambda algorithm, context: not context.starts_stage)
SOME_SITES = When("with `fraction` below 1", lambda algorithm, context: algorithm.fraction < 1)
ALL_SITES = When("with `fraction` = 1", lambda algorithm, context: algorithm.fraction == 1)


def given(name: str) -> When:
    """Return the condition that a hyper-parameter is not 0."""
    return When(f"with `{name}` above 0", lambda algorithm, context: bool(getattr(algorithm, name)))


@dataclass(frozen=True)
class Row:
    """Vectors that occur together in a message or in a site's memory."""

    # "down", "up", "kept" (a site's memory after a phase), or "final" (down for the final evaluation;
    # without such a row, the run's model is sent)
    way: Way
    vectors: Lengths  # lengths by name
    phase: str = "*"  # the phases it applies to, as a glob pattern
    when: tuple[When, ...] = ()  # conditions, all of which must hold
    of: str = ""  # what the vectors are, in words for a hospital's engineer
    # whether they are control variates or running estimates, equal for all sites and robust to unbiased errors:
    # `wire-estimators` may round them to 8 bits
    estimate: bool = False
    # how the coordinator uses a reply: "summed" (only the weighted sum over the sites), "relayed" (passed on to
    # other sites), "in the clear" (each site's own)
    use: Use = "summed"
    lost: tuple[Lengths, ...] = ()  # alternatives after a loss of a reply or of a site's memory

    @property
    def averaged(self) -> bool:
        """Whether the coordinator uses only a mean of these vectors; a `COUNT` among them is their weight."""
        return self.use == "summed" or (self.use == "in the clear" and COUNT in self.vectors.values())

    @property
    def relays(self) -> bool:
        """Whether a site receives these vectors of each neighbour, as "x-3", with their ``weights``."""
        return self.use == "relayed" and self.way != "up"

    def holds(self, algorithm: object, context: RoundContext) -> bool:
        """Whether the row applies in this phase and round."""
        return fnmatchcase(context.phase, self.phase) and all(one.holds(algorithm, context) for one in self.when)


class Table:
    """The rows of an algorithm; ``Parent.messages + Table(...)`` extends a parent's."""

    def __init__(self, *rows: Row | tuple[Row, ...]) -> None:
        self.rows: tuple[Row, ...] = tuple(one for row in rows for one in ((row,) if isinstance(row, Row) else row))

    def __add__(self, other: Table) -> Table:
        """Return the rows of both."""
        return Table(*self.rows, *other.rows)

    def of(self, way: Way) -> Iterator[Row]:
        """Yield the rows of one way."""
        return (row for row in self.rows if row.way == way)

    def in_phase(self, phase: str) -> Table:
        """Return the same rows for one phase."""
        return Table(*(replace(row, phase=phase) for row in self.rows))

    @property
    def estimates(self) -> frozenset[str]:
        """The names of the vectors that may be rounded to 8 bits."""
        return frozenset(name for row in self.rows if row.estimate for name in row.vectors)

    @cached_property
    def sums(self) -> bool:
        """Whether sums over the sites are all that the coordinator needs of them."""
        return all(row.averaged for row in self.of("up"))

    @cached_property
    def averages(self) -> bool:
        """Whether the coordinator's step is a mean of all that sites send."""
        return self.sums and any(self.of("up"))

    @cached_property
    def remembers(self) -> bool:
        """Whether a site keeps anything from one message to the next."""
        return any(self.of("kept"))


def down(
    *when: When,
    phase: str = "*",
    of: str = "",
    estimate: bool = False,
    lost: Lengths | tuple[Lengths, ...] = (),
    **vectors: str,
) -> Row:
    """Declare vectors sent to a site."""
    return Row("down", vectors, phase, when, of, estimate, lost=_several(lost))


def up(
    *when: When,
    phase: str = "*",
    of: str = "",
    estimate: bool = False,
    use: Use = "summed",
    lost: Lengths | tuple[Lengths, ...] = (),
    **vectors: str,
) -> Row:
    """Declare vectors of a site's reply."""
    return Row("up", vectors, phase, when, of, estimate, use, _several(lost))


def both(*when: When, phase: str = "*", of: str = "", estimate: bool = False, **vectors: str) -> tuple[Row, Row]:
    """Declare vectors of a site's reply that are also, under these conditions, sent to it."""
    return Row("down", vectors, phase, when, of, estimate), Row("up", vectors, phase, (), of, estimate)


def kept(*when: When, phase: str = "*", of: str = "", **vectors: str) -> Row:
    """Declare vectors that a site keeps after a phase until its next message."""
    return Row("kept", vectors, phase, when, of)


def final(**vectors: str) -> Row:
    """Declare vectors sent for the final evaluation in place of the run's model."""
    return Row("final", vectors)


def _several(lost: Lengths | tuple[Lengths, ...]) -> tuple[Lengths, ...]:
    return lost if isinstance(lost, tuple) else (lost,)


# ---------------------------------------------------------------------- in words

WORDS = {"x": "the model x", "y": "the dual variable y", "body": "the body"}


def sends(algorithm: Algorithm | type[Algorithm]) -> str:
    """Return the vectors that leave a site, in words for a hospital's engineer."""
    return _in_words(algorithm, "up") or "nothing"


def remembers(algorithm: Algorithm | type[Algorithm]) -> str:
    """Return the vectors that a site keeps, in words; empty for none."""
    return _in_words(algorithm, "kept")


def _in_words(algorithm: Algorithm | type[Algorithm], way: Way) -> str:
    parts = []
    for row in algorithm.messages.of(way):
        names = [name for name, length in row.vectors.items() if length != "p" or "minimax" in algorithm.solves]
        text = ", ".join(WORDS.get(name, f"`{name}`") for name in names) + f" ({row.of})" * bool(row.of)
        text = row.of if row.of and way == "kept" else text
        parts.append(" ".join([*(f"{one.words}:" for one in row.when), text]))
    return "; ".join(dict.fromkeys(parts))
