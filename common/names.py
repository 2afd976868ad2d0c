"""Names that look alike."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

LIKE = {
    "a": "аα",
    "b": "вьβ",
    "c": "с",
    "d": "ԁ",
    "e": "еε",
    "g": "ɡ",
    "h": "һн",
    "i": "іιı",
    "j": "јϳ",
    "k": "кκ",
    "l": "ӏ",
    "m": "мμ",
    "n": "ηп",
    "o": "оοσօ",
    "p": "рρ",
    "q": "ԛ",
    "s": "ѕ",
    "t": "тτ",
    "u": "υս",
    "v": "νѵ",
    "w": "ԝω",
    "x": "хχ",
    "y": "уγү",
    "-": "‐‑‒–—−",
}
"""Letters of other scripts that look like Latin ones in lower or upper case, and dashes."""
LOOK = {ord(other): ours for ours, others in LIKE.items() for other in others}
UNSEEN = "\u115f\u1160"  # invisible letters


def looks(name: str) -> str:
    """Return a name without differences that the eye may miss: spaces, case, accents, scripts, dashes."""
    parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    seen = "".join(c for c in parts if unicodedata.category(c)[0] not in "MC" and c not in UNSEEN)
    return "".join(seen.split()).translate(LOOK)


def alike(names: Iterable[str]) -> list[list[str]]:
    """Return each group of names that are or look the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(looks(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]
