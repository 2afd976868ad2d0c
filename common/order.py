"""The order in which people count: site 10 behind site 9."""

from __future__ import annotations

import re

_DIGITS = re.compile("([0-9]+)")


def natural(name: str) -> tuple[list[int | str], str]:
    """Return what to sort names by: text and numbers alternate, and ``"site-10"`` comes behind ``"site-9"``."""
    return [int(part) if place % 2 else part for place, part in enumerate(_DIGITS.split(name))], name
