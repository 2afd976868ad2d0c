"""The errors of a run; their message is all that a user needs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class RunError(RuntimeError):
    """The run cannot go on; the message says where it stopped, why, and what to change."""


class StrategyError(ValueError):
    """Hyper-parameters that cannot be used; the message names each, its value and what is allowed."""


class BadAnswerError(ValueError):
    """A site's answer cannot be used; the message says why, as the rest of a sentence that names the site."""


class BadValuesError(BadAnswerError):
    """An answer is in order but for its values: NaN, or out of all proportion, as in a run that diverges."""


@contextmanager
def naming_round(server_round: int, rounds: int) -> Iterator[None]:
    """Say in a RunError which round it was."""
    try:
        yield
    except RunError as error:
        raise RunError(f"round {server_round} of {rounds}: {error}") from None
