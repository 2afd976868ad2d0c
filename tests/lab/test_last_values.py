"""A run says so where its last values are of another model than the one that its rounds led to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edelweiss.lab.report.content import Content
from edelweiss.lab.report.page import html
from edelweiss.server_app import simulate

JOB: dict[str, Any] = {"dataset": "breast-cancer", "sites": 3, "rounds": 3, "local-steps": 2, "engine": "local"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"algorithm": "coda-plus"}, "a stage ends with the average of its iterates"),
        ({"algorithm": "codasca", "output": "random"}, "that of a random round"),
        ({"algorithm": "local-sgda", "output": "average"}, "the average over the rounds of a stage"),
        ({"algorithm": "codasca"}, ""),
    ],
)
def test_what_the_last_values_are_of(
    keys: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = simulate(JOB | keys | {"model": "linear", "runs-dir": str(tmp_path)}, quiet=False).folder
    printed, page = " ".join(capsys.readouterr().out.split()), html(Content.read(folder))
    for text in (printed, page):
        assert ("may be worse than earlier ones" in text) == bool(said)
    assert said in printed
