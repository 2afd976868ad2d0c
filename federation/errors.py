"""The errors of a run; their message is all that a user needs."""

from __future__ import annotations


class RunError(RuntimeError):
    """The run cannot go on; the message says where it stopped, why, and what to change."""


class StrategyError(ValueError):
    """Hyper-parameters that cannot be used; the message names each, its value and what is allowed."""


class BadAnswerError(ValueError):
    """A site's answer cannot be used; the message says why, as the rest of a sentence that names the site."""


class BadValuesError(BadAnswerError):
    """An answer is in order but for its values: NaN, or out of all proportion, as in a run that diverges."""
