"""What comes of a trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """What was found: how bad it is, about what, and in words, with the fix."""

    level: Level
    about: str
    text: str
