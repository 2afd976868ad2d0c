"""What an algorithm's card says, as numbers."""

from __future__ import annotations

import re


def value(cell: str, **numbers: float) -> float:
    """Evaluate a sum such as "2d + p" or "4q - 2"."""
    total = 0.0
    for term in cell.replace("+ ", "").replace("- ", "-").split():
        sign, factor, letter = re.fullmatch(r"(-?)(\d*)([a-z]?)", term).groups()  # type: ignore[union-attr]
        total += (-1 if sign else 1) * int(factor or 1) * (numbers[letter] if letter else 1)
    return total
