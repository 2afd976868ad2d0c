"""The ServerApp: what the coordinator runs under Flower."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flwr.serverapp import Grid, ServerApp

if TYPE_CHECKING:
    from flwr.app import Context

app = ServerApp()


def without_traceback(record: logging.LogRecord) -> bool:
    """Let Flower log a user's mistake in its own words and no more; a filter for its logger."""
    from config import MISTAKES

    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, MISTAKES):
        record.msg, record.args, record.exc_info = str(error), (), None
    return True


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Check the run-config, then run the job on Flower's grid, or on the local engine if it says so."""
    import torch

    from config import RunConfig
    from server_app.console import Progress
    from server_app.coordinator import coordinate
    from server_app.local import LocalGrid

    logging.getLogger("flwr").addFilter(without_traceback)
    config = RunConfig.parse(context.run_config)
    torch.set_num_threads(config.threads)
    if config.engine == "local":
        with LocalGrid(config, context.run_id, fork=False) as local:  # Flower's process has threads
            coordinate(config, local, Progress())
    else:
        coordinate(config, grid, Progress())
