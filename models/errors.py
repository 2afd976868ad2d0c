"""The one error of this package."""

from __future__ import annotations


class ModelError(ValueError):
    """A model that does not exist or does not fit: the message names the mistake and what is needed."""
