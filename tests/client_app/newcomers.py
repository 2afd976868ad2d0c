"""A finished run, and a hospital that comes after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from keys import Value
from server_app.console import Progress
from server_app.coordinator import coordinate
from tests.server_app.sites import SiteGrid, hospitals, site_job, table, write_table


def finished(folder: Path, **keys: Value) -> Path:
    """Run at three hospitals; return the run folder."""
    config = site_job(folder, **{"algorithm": "fedrep", "model": "mlp", "hidden": 8, "rounds": 3, **keys})
    with SiteGrid(config, hospitals(folder)) as grid:
        return coordinate(config, grid, Progress(quiet=True)).folder


def newcomer(folder: Path, rows: int = 80, classes: int = 2) -> Path:
    """Write the data of a hospital whose features mean the opposite; returns its folder."""
    features, labels = table(rows, seed=9)
    return write_table(folder / "private-new", -features, np.arange(rows) % classes if classes > 2 else labels)
