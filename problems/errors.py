"""The one error of this package."""

from __future__ import annotations


class ProblemError(ValueError):
    """A problem was asked for something it cannot do; the message names the key, the value and the fix."""
