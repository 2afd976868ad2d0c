"""Inputs that mean nothing, through the real entry points: how many get one clear line.

A module of this package generates the inputs of one boundary. Its ``KINDS`` name what can be wrong, each with a
function of a random generator that yields pairs: what the input is, in a few words, and a callable that hands it in.

The callable returns what the user is told, as text; True where the input was rightly taken, since it means something;
None where it was taken without a word. It raises what a user would see raised. What it must never do is decide by
itself that an exception is well worded: that is for `outcome`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

OUTCOMES = ("message", "accepted", "silent", "traceback", "hang")
"""One clear line; rightly taken; taken without a word; an exception that is no message; no end in `LIMIT` seconds."""

LIMIT = 60.0  # seconds
LONGEST = 2000  # characters of a message

Case = tuple[str, Callable[[], "str | bool | None"]]
Kind = Callable[[Random], Iterator[Case]]


class Hang(BaseException):
    """The time is over; no handler of ordinary exceptions may swallow it."""


def outcome(attempt: Callable[[], str | bool | None]) -> tuple[str, str]:
    """Hand an input in; return one of `OUTCOMES`, and what was said."""
    from edelweiss.client_app.memory import StateError
    from edelweiss.client_app.personalise import PersonaliseError
    from edelweiss.config import MISTAKES, ConfigError
    from edelweiss.federation import RunError

    try:
        with within(LIMIT):
            said = attempt()
    except Hang:
        return "hang", ""
    except (ConfigError, RunError, StateError, PersonaliseError, *MISTAKES) as error:
        said = str(error)
    except (Exception, SystemExit) as error:
        return "traceback", f"{type(error).__name__}: {error}"
    if said is None or isinstance(said, bool):
        return ("accepted" if said else "silent"), ""
    clear = said.strip() and len(said) <= LONGEST and all(line.isprintable() for line in said.split("\n"))
    return ("message" if clear else "traceback"), said


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `Hang` in what takes longer; in the main thread only."""

    def over(number: int, frame: FrameType | None) -> NoReturn:
        raise Hang

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
