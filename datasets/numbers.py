"""Parsing of table values: numbers, truth values and missing values."""

from __future__ import annotations

import re

from edelweiss.common import numbers

LARGEST = 1e18  # largest feature value, whose square is still a float32
MISSING = ("", "?", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", ".", "-")  # case is ignored
DATE = re.compile(r"(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})([ T].*)?$")
NEGATIVE = ("0", "no", "n", "false", "negative", "neg", "nein", "non", "alive")  # of a pair, as people write it
TRUTH = {"false": 0.0, "true": 1.0}  # case is ignored


def finite(text: str) -> float:
    """Parse a number within ±`LARGEST`; ValueError for any other text."""
    if abs(value := numbers.number(text)) > LARGEST:
        raise ValueError(f"{text!r} is not a number within ±{LARGEST:g}")
    return value


def is_number(text: str) -> bool:
    """Whether a text is a number of any size."""
    try:
        numbers.number(text)
    except ValueError:
        return False
    return True


def canonical(text: str) -> str:
    """Return the canonical spelling of a class or category.

    Lower case; integers without plus sign, decimal point or leading zeros, so that 1, 1.0 and +01 are equal.
    """
    try:
        value = numbers.number(text)
    except ValueError:
        return text.lower()
    return str(int(value)) if value.is_integer() else text.lower()
