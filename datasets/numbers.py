"""Numbers in the text of tables."""

from __future__ import annotations

LARGEST = 1e18  # of a feature: its square is a float32, too


def finite(text: str) -> float:
    """Parse a number; ValueError for any other text, and for one that cannot be computed with."""
    value = float("" if "_" in text else text)  # Python's own literals may have underscores
    if not abs(value) <= LARGEST:
        raise ValueError(f"{text!r} is no number within ±{LARGEST:g}")
    return value
