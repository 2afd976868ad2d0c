"""The outcome of a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """The outcome of a test: its level, its subject, and a text with the fix."""

    level: Level
    about: str
    text: str
