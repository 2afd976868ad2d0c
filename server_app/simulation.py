"""The Python API: a run in the local engine, from a dictionary to a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edelweiss.server_app.script_guard import leave_unguarded_script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edelweiss.server_app.console import Progress
    from edelweiss.server_app.coordinator import Result


def simulate(config: Mapping[str, Any], *, quiet: bool = True, progress: Progress | None = None) -> Result:
    """Run a job on this machine, without Ray and without a SuperLink.

    From then on this process keeps freed memory; remapping large tensors at every step takes 1.4 times as long.

    Parameters
    ----------
    config : mapping
        Run-config keys and values as in pyproject.toml; an algorithm's table flat (``{"codasca.lr": 0.1}``) or nested
        (``{"codasca": {"lr": 0.1}}``). Missing keys have their defaults. Spawned workers (with a GPU or several
        threads) import the main script, so call this under ``if __name__ == "__main__":``.
    quiet : bool
        Whether to print nothing.
    progress : Progress, optional
        Receives the output instead; an exception that it raises stops the run like Ctrl-C.

    Returns
    -------
    Result
        Metrics per round, the final model, the run folder.

    Raises
    ------
    edelweiss.config.ConfigError
        With all problems of the configuration.
    edelweiss.federation.RunError
        If the run cannot continue.
    """
    leave_unguarded_script()
    import torch

    from edelweiss.common import with_resumed
    from edelweiss.common.memory import collecting_rarely, keep_freed_memory
    from edelweiss.config import RunConfig, flatten
    from edelweiss.config.plug_ins import load_own, require_known
    from edelweiss.lab.report import write_report
    from edelweiss.server_app.console import Progress
    from edelweiss.server_app.coordinator import coordinate
    from edelweiss.server_app.local import LocalGrid, unused_run_id

    keep_freed_memory()
    settings = with_resumed(load_own(flatten(config)))
    if settings.get("resume"):
        require_known(settings)
    run_config = RunConfig.parse(settings)
    threads = torch.get_num_threads()
    torch.set_num_threads(run_config.threads)
    try:
        with collecting_rarely(), LocalGrid(run_config, unused_run_id()) as grid:
            return coordinate(run_config, grid, progress or Progress(quiet), write_report)
    finally:
        torch.set_num_threads(threads)
