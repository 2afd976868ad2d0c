"""The two errors of a run; their message is all that a user needs."""

from __future__ import annotations


class RunError(RuntimeError):
    """The run cannot go on; the message says where it stopped, why, and what to change."""


class StrategyError(ValueError):
    """Hyper-parameters that cannot be used; the message names each, its value and what is allowed."""
