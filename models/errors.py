"""The error of this package."""

from __future__ import annotations

from edelweiss.common import FieldError


class ModelError(FieldError):
    """An unknown or unsuitable model; the message names the mistake and the fix."""
