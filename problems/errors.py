"""The error of this package."""

from __future__ import annotations

from edelweiss.common import FieldError


class ProblemError(FieldError):
    """An invalid use of a problem; the message names the key, the value and the fix."""
