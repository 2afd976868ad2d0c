"""A finished run, and a hospital that comes after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from edelweiss.client_app.personalise import FinishedRun
from edelweiss.common import Value
from edelweiss.datasets import SiteData, load_site
from edelweiss.models import build
from edelweiss.problems.network import NetworkProblem
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from tests.server_app.sites import FEATURES, SiteGrid, hospitals, site_job, table, write_table


def finished(folder: Path, **keys: Value) -> Path:
    """Run at three hospitals; return the run folder."""
    config = site_job(folder, **{"algorithm": "fedrep", "model": "mlp", "hidden": 8, "rounds": 3, **keys})
    with SiteGrid(config, hospitals(folder)) as grid:
        return coordinate(config, grid.fix_secrets(), Progress(quiet=True)).folder


def newcomer(folder: Path, rows: int = 80, classes: int = 2) -> Path:
    """Write the data of a hospital whose features mean the opposite; returns its folder."""
    features, labels = table(rows, seed=9)
    return write_table(folder / "private-new", -features, np.arange(rows) % classes if classes > 2 else labels)


def at_home(folder: Path, data_dir: Path) -> tuple[FinishedRun, SiteData]:
    """Read both sides as the command line does."""
    given = FinishedRun.read(folder)
    return given, load_site(given.config.data(str(data_dir)), 0, 1)


def built(given: FinishedRun) -> NetworkProblem:
    """Build the problem of a finished run, on the CPU."""
    problem = given.config.build_problem(given.config.setting(given.data_summary, "cpu"))
    assert isinstance(problem, NetworkProblem)
    return problem


def in_order(given: FinishedRun, classes: int = 2) -> torch.Tensor:
    """Return all parameters in the order of the network's own."""
    module = build("mlp", (FEATURES,), 1 if classes == 2 else classes, hidden=8)
    module.load_state_dict(given.state, strict=True)
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
