"""Parsers of numbers in text; stricter than Python, which accepts ``0_2`` or ``nan``."""

from __future__ import annotations

import math
import re

# ASCII digits only: Python accepts those of other scripts, which no spreadsheet or database writes.
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DIGITS = 18  # of a whole number, at most: it fits into 64 bits, and thousands would take Python long


def whole(text: str) -> int:
    """Parse a whole number in decimal digits, with or without a sign; ValueError for any other text."""
    if not _WHOLE.fullmatch(text) or len(text.lstrip("+-").lstrip("0")) > _DIGITS:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(text)


def number(text: str) -> float:
    """Parse a finite number, with a point before its decimals; ValueError for any other text.

    No spaces around it, underscores, separators of thousands, infinity or NaN.
    """
    if not _NUMBER.fullmatch(text) or not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]!r} is not a number")
    return value
