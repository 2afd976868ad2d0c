"""docs/report.md: what it says is there, and its example is one that the app writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server_app import simulate
from server_app.__main__ import main
from server_app.page.template import STYLE
from tests.server_app.sites import REPORT, saddle_job

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "report.md").read_text(encoding="utf-8")


def test_its_command_writes_every_file_that_it_names_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = simulate(saddle_job(tmp_path) | {"run-name": "heart", "report": False}).folder
    named = set(re.findall(r"`([\w-]+\.\w+)`", "".join(row for row in PAGE.splitlines() if row.startswith("| `"))))
    assert named == set(REPORT), "what a run leaves, see tests/server_app/test_app.py"
    monkeypatch.chdir(tmp_path)
    [command] = re.findall(r"^python -m server_app (report .*)$", PAGE, re.MULTILINE)
    assert main(command.split()) == 0
    assert all((folder / name).exists() for name in named)
    assert (folder / "pictures" / "curves.pdf").exists()


def test_the_example_is_of_this_version() -> None:
    example = (DOCS / "report-example.html").read_text(encoding="utf-8")
    assert STYLE in example, "write it anew, by the command on the page"
    assert not re.search(r"(?:href|src)=\"(?!#)", example)
