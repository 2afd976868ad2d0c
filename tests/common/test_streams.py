"""The random streams of a run: no two purposes share bits."""

from __future__ import annotations

import re
from pathlib import Path

from edelweiss.common import Stream

ROOT = Path(__file__).resolve().parents[2]


def test_every_purpose_has_a_number_of_its_own() -> None:
    assert len({int(stream) for stream in Stream.__members__.values()}) == len(Stream.__members__)


def test_no_two_places_draw_from_one_stream() -> None:
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("*/*.py") if path.parent.name != "tests"]
    used = re.findall(r"\bStream\.([A-Z_]+)", "\n".join(sources))
    assert used
    assert sorted(used) == sorted(set(used))
