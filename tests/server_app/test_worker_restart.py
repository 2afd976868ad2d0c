"""Worker processes of the local engine die between two rounds: what sites remember is on disk, and nothing changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from edelweiss.config import RunConfig
from edelweiss.problems import PROBLEMS
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from edelweiss.server_app.pool import Pool
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.server_app.sites import job, saddle_job
from tests.strategies.memories import REMEMBERING

ROUNDS = 3
FEW_SHOTS = {"maml.ways": 2, "maml.queries": 2, "maml.test-tasks": 1, "batch-size": 5}
SOME = ("codasca", "fgda", "dispfl")
"""Control variates, estimators, masks. That each algorithm goes on is tested with resumed runs."""


class Killing(LocalGrid):
    """The local engine; all its workers are killed before the messages of some rounds leave."""

    rounds: Collection[int] = ()
    killed = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if messages[0].content.config_records["config"].get("round") in self.rounds:
            assert self._pool
            for pipe, worker in list(self._pool.alive.items()):
                assert not worker.stacks, "between two rounds"
                worker.process.kill()
                worker.process.join()
                pipe.close()
                del self._pool.alive[pipe]
                self.killed += 1
        return super().push_messages(messages)


def run(keys: dict[str, Any], rounds: Collection[int] = ()) -> tuple[Result, int]:
    """Run, killing all workers before these rounds."""
    torch.set_num_threads(1)
    with Killing(RunConfig.parse(keys), unused_run_id()) as grid:
        grid.rounds = rounds
        return coordinate(grid.config, grid, Progress(quiet=True)), grid.killed


def untimed(result: Result) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if "seconds" not in key} for record in result.metrics]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_new_workers_go_on_where_those_before_them_were(name: str, tmp_path: Path) -> None:
    assert name in REMEMBERING
    fit = [problem for problem in PROBLEMS if can_solve(ALGORITHMS[name], PROBLEMS[problem])]
    keys = saddle_job(tmp_path) if "saddle" in fit else job(tmp_path, problem=fit[0], **FEW_SHOTS)
    keys = {key: value for key, value in keys.items() if not key.startswith("local-sgda")}
    keys |= {"algorithm": name, "rounds": ROUNDS, "state-dir": str(tmp_path / "state")}
    quiet, _ = run(keys | {"workers": 1})
    restarted, killed = run(keys | {"workers": 2}, rounds=(2, ROUNDS))
    assert killed >= 2 * 2
    assert untimed(restarted) == untimed(quiet)


def test_a_new_worker_takes_no_name_of_one_that_is_alive(tmp_path: Path) -> None:
    """It would write its answers over those of the other: files are named by who writes them."""
    torch.set_num_threads(1)
    pool = Pool(2, "fork", str(tmp_path), [])
    try:
        pool.push([])
        first, other = pool.alive.values()
        first.process.kill()
        assert pool.pull(60) == [], "it notices, and nobody waits for an answer"
        pool.push([])
        assert other in pool.alive.values()
        assert len({worker.process.name for worker in pool.alive.values()}) == 2
    finally:
        pool.close(5)
