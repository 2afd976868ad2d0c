"""Natural order: site 10 after site 9."""

from __future__ import annotations

import re

_DIGITS = re.compile("([0-9]+)")


def natural(name: str) -> tuple[list[int | str], str]:
    """Return a sort key of alternating text and numbers: ``"site-10"`` comes after ``"site-9"``."""
    return [int(part) if place % 2 else part for place, part in enumerate(_DIGITS.split(name))], name
