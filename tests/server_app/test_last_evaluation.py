"""The last evaluation may take minutes at many sites: it is announced, and on a terminal counted."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from flwr.app import Context, Error, Message
from rich.console import Console

from edelweiss.client_app.app import answer
from edelweiss.config import RunConfig
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
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
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    before, _, rest = plain.partition(f"final evaluation{', sites' if terminal else ' at 5 sites'}")
    assert "round 1/2" in before
    assert "round 2/2" in rest
    counted = list(map(int, re.findall(r"(\d)/5", rest)))
    assert counted == sorted(counted)
    assert (counted[:1], counted[-1:]) == (([0], [5]) if terminal else ([], []))
    assert ("\x1b" in out.getvalue()) == terminal
    rounds = [int(done) for done in re.findall(r"rounds .*?(\d)/2 ", before)]
    assert (rounds[:1], rounds[-1:]) == (([0], [1]) if terminal else ([], []))


def test_a_site_that_is_missing_by_then_costs_its_line_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def failing(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "evaluate" and message.metadata.dst_node_id == 2:
            return Message(Error(0, "it broke"), reply_to=message)
        return answer(message, context)

    monkeypatch.setattr("edelweiss.client_app.app.answer", failing)
    result = simulate(saddle_job(tmp_path, sites=3, rounds=2))
    assert set(result.metrics[-1]["sites"]) == {"site-0", "site-2"}
    assert set(result.metrics[0]["sites"]) == {"site-0", "site-1", "site-2"}
