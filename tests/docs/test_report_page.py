"""docs/report.md: its example is one that the app writes; tests/server_app/test_page.py follows its command."""

from __future__ import annotations

import re
from pathlib import Path

from edelweiss.lab.report.template import STYLE

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_example_is_of_this_version() -> None:
    example = (DOCS / "report-example.html").read_text(encoding="utf-8")
    assert STYLE in example, "write it anew, by the command on the page"
    assert not re.search(r"(?:href|src)=\"(?!#)", example)
