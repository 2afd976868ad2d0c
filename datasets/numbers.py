"""Values in the text of tables: numbers, the two words that are numbers, and the spellings of what is missing."""

from __future__ import annotations

from edelweiss.common import numbers

LARGEST = 1e18  # of a feature: its square is a float32, too
MISSING = ("", "?", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", ".", "-")  # lower case: capitals do not count
TRUTH = {"false": 0.0, "true": 1.0}  # lower case, likewise


def finite(text: str) -> float:
    """Parse a number; ValueError for any other text, and for one that cannot be computed with."""
    if abs(value := numbers.number(text)) > LARGEST:
        raise ValueError(f"{text!r} is no number within ±{LARGEST:g}")
    return value


def is_number(text: str) -> bool:
    """Whether a text is a number, however large."""
    try:
        numbers.number(text)
    except ValueError:
        return False
    return True


def canonical(text: str) -> str:
    """Return one spelling of a text that stands for a class or a category.

    Lower case; whole numbers without sign, point or zeros to no effect, so that 1, 1.0 and +01 are the same.
    """
    try:
        value = numbers.number(text)
    except ValueError:
        return text.lower()
    return str(int(value)) if value.is_integer() else text.lower()
