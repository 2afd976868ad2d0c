"""The coordinator's evaluation on the common test set, if there is one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from edelweiss.datasets import DataError, fingerprints, load_test
from edelweiss.problems import PROBLEMS
from edelweiss.server_app.local import LocalGrid
from edelweiss.server_app.recorder import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.serverapp import Grid

    from edelweiss.config import RunConfig
    from edelweiss.datasets import DataSummary, Samples
    from edelweiss.problems import Arrays, Problem
    from edelweiss.server_app.recorder import Recorder


def central_evaluation(
    config: RunConfig, problem: Problem, test: Samples | None, recorder: Recorder
) -> Callable[[int, Arrays], dict[str, float] | None]:
    """Return the function that records a round's model and, if possible, evaluates it here.

    Models or batch-norm statistics that stay at the sites cannot be evaluated here.
    """
    possible = not config.personalised and (test is not None or not problem.needs_data)
    every = config.evaluate_every

    def evaluate(server_round: int, model: Arrays) -> dict[str, float] | None:
        started = time.monotonic()
        due = (every and server_round % every == 0) or server_round == config.rounds
        metrics: dict[str, float] = {}
        if due and possible:
            here = {name: vector.to(problem.device) for name, vector in model.items()}
            if "buffers" in here:
                problem.load_buffers(here["buffers"])
            metrics = plain(problem.metrics(here["x"], here.get("y"), test))
        recorder.central(model, metrics, time.monotonic() - started)
        return metrics or None

    return evaluate


def judged_on(config: RunConfig, grid: Grid) -> dict[str, str]:
    """Return digests of a simulation's evaluation samples, for `lab.compare`; none for a site that is left out."""
    if not (isinstance(grid, LocalGrid) and PROBLEMS[config.problem].needs_data):
        return {}
    try:
        return fingerprints(config.data(), config.sites)
    except DataError:
        return {}


def common_test_set(
    config: RunConfig, problem: Problem, data_summary: DataSummary, recorder: Recorder
) -> Samples | None:
    """Return the common test set; None if there is none, as with hospitals' folders."""
    wanted = PROBLEMS[config.problem].needs_data and config.central_test and config.dataset != "site"
    if not wanted or config.bn != "average" or config.personalised:
        return None
    test = load_test(config.data())
    if test is None:
        return None
    if problem.multiclass and (text := problem.shortfall(test.targets().bincount().tolist())):
        recorder.progress.warn(f"no evaluation on the common test set: it has {text}")
        return None
    return data_summary.standardised(test).to(problem.device)
