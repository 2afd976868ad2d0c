"""The last evaluation may take minutes at many sites: it is announced, and on a terminal counted."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from config import RunConfig
from server_app.console import Progress
from server_app.coordinator import coordinate
from server_app.local import LocalGrid, unused_run_id
from tests.server_app.sites import saddle_job


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("terminal", [False, True])
def test_the_last_evaluation_is_announced_and_on_a_terminal_counted(
    tmp_path: Path, workers: int, terminal: bool
) -> None:
    progress, out = Progress(), io.StringIO()
    progress.console = Console(file=out, force_terminal=terminal, width=110, soft_wrap=True)
    with LocalGrid(RunConfig.parse(saddle_job(tmp_path, rounds=2, sites=5, workers=workers)), unused_run_id()) as grid:
        coordinate(grid.config, grid, progress)
    before, _, rest = out.getvalue().partition("the last evaluation, at 5 sites")
    assert "round 1/2" in before
    assert "round 2/2" in rest
    counted = list(map(int, re.findall(r"(\d) done", rest)))
    assert counted == sorted(set(counted))
    assert (counted[:1], counted[-1:]) == (([0], [5]) if terminal else ([], []))
    assert ("at 5 sites" in rest) == terminal
