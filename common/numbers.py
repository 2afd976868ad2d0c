"""The one reader of numbers in text: what Python also takes for one, such as ``0_2`` or ``nan``, is none."""

from __future__ import annotations

import math
import re

# Digits are those of ASCII: of another script's Python makes numbers, and no spreadsheet or database writes them.
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DIGITS = 18  # of a whole number, at most: it fits into 64 bits, and Python takes long over thousands


def whole(text: str) -> int:
    """Parse a whole number in decimal digits, with or without a sign; ValueError for any other text."""
    if not _WHOLE.fullmatch(text) or len(text.lstrip("+-").lstrip("0")) > _DIGITS:
        raise ValueError(f"{text[:40]!r} is no whole number")
    return int(text)


def number(text: str) -> float:
    """Parse a finite number, with a point before its decimals; ValueError for any other text.

    No spaces around it, underscores, separators of thousands, infinity or NaN.
    """
    if not _NUMBER.fullmatch(text) or not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]!r} is no number")
    return value
