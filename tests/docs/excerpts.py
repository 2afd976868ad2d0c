"""What a page shows of a command's output is what the command prints: a page must not grow stale in silence."""

from __future__ import annotations

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]

NUMBER = r"-?\d+\.\d+"
OWN = r"\d+\.\d+ s\b|\S*/(?:runs|playground)/(?:\d{8}-\d{6}-)?"  # of one run: its seconds, its folder


def excerpts(page: str) -> list[str]:
    """Return the blocks of a page that are in no language: what something prints."""
    text = (REPO / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for language, block in blocks if not language]


def stale(shown: str, printed: str) -> list[str]:
    """Return the lines of an excerpt that were not printed, but for seconds, folders and the last digits of numbers."""
    there = [(_words(line), _numbers(line)) for line in printed.splitlines()]

    def fresh(line: str) -> bool:
        words, numbers = _words(line), _numbers(line)
        return any(words == others and all(map(_near, numbers, found)) for others, found in there)

    return [line for line in shown.splitlines() if line != "..." and not fresh(line)]


def _words(line: str) -> list[str]:
    return re.sub(NUMBER, "#", re.sub(OWN, "", line)).split()


def _numbers(line: str) -> list[str]:
    return re.findall(NUMBER, re.sub(OWN, "", line))


def _near(shown: str, found: str) -> bool:
    # Processors add in other orders: the last digits are those of the page's machine, of slopes more than of areas.
    _, _, digits = shown.partition(".")
    least = 0.03 * abs(float(shown)) if abs(float(shown)) > 1 else 2e-3
    return abs(float(shown) - float(found)) <= max(least, float(f"1.5e-{len(digits)}"))
