"""docs/report.md: its example is one that the app writes; tests/lab/test_page.py follows its command."""

from __future__ import annotations

import re
from pathlib import Path

from edelweiss.lab.report.page import TEMPLATE

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_example_is_of_this_version() -> None:
    example = (DOCS / "report-example.html").read_text(encoding="utf-8")
    [style] = re.findall("<style>.*?</style>", TEMPLATE.read_text(encoding="utf-8"), re.DOTALL)
    assert style in example, "write it anew, by the command on the page"
    assert not re.search(r"(?:href|src)=\"(?!#)", example)
