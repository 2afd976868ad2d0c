"""The errors of a run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from edelweiss.common import FieldError, Fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class RunError(Fields, RuntimeError):
    """The run cannot continue; the message says where it stopped, why, and what to change.

    Attributes
    ----------
    round : int
        The round in which it stopped; 0 before the first.
    sites : tuple of str
        The sites concerned.
    problems : tuple of Exception
        The errors that `join` combined; empty for a single one.
    """

    round = 0
    problems: tuple[Any, ...] = ()

    def __init__(self, text: str, *, sites: Iterable[str] = (), **fields: Any) -> None:
        super().__init__(text, **fields)
        self.sites = tuple(sites)

    @classmethod
    def join(cls, problems: Sequence[Exception]) -> Self:
        """Combine errors into one, with a line for each; a single one stays as it is."""
        if len(problems) == 1 and isinstance(problems[0], cls):
            return problems[0]
        error = cls("\n".join(map(str, problems)))
        error.problems = tuple(problems)
        return error


class DivergedError(RunError):
    """The run diverges; ``key`` and ``value`` are the metric or vector, ``sites`` the sites that report it."""


class TooFewRepliesError(RunError):
    """Fewer sites than needed gave a usable reply: ``value`` did, ``allowed`` are needed, ``sites`` failed."""


class AwaitsApprovalError(RunError):
    """The operators of ``sites`` have not approved the run in time; it can be resumed."""


class StrategyError(FieldError):
    """Invalid hyper-parameters; the message gives each, its value and what is allowed."""


class BadReplyError(FieldError):
    """An unusable reply of a site; the message completes a sentence that begins with the site's name."""


class BadValuesError(BadReplyError):
    """A well-formed reply with NaN or excessive values, as in a diverging run."""


@contextmanager
def naming_round(server_round: int, rounds: int) -> Iterator[None]:
    """Add the round to a RunError."""
    try:
        yield
    except RunError as error:
        error.round, error.args = server_round, (f"round {server_round} of {rounds}: {error}",)
        raise
