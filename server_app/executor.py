"""The coordinator's executor: Flower's SuperExec, which here launches the installed release and no code of a run.

Whoever reaches the SuperLink's Control API may submit a bundle. Flower's own executor runs the ServerApp that lies in
it, which could read the executor's key. ``edelweiss-executor`` takes the same options and for each run launches
``edelweiss-serverapp``, which reads the run's keys from the bundle's pyproject.toml and runs the ServerApp of this
installation.

The internals are those of flwr 1.39; `tests/deployment/test_tickets.py` tries them.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from edelweiss.server_app.control import show_certificate

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

COMMAND = "edelweiss-serverapp"

log = logging.getLogger("edelweiss")


def main() -> None:
    """Launch the ServerApp of this installation for each run; the command ``edelweiss-executor``."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType

    show_certificate()
    for kind in TASK_TYPE_TO_COMMAND:
        TASK_TYPE_TO_COMMAND[kind] = COMMAND if kind is TaskType.SERVER_APP else "false"
    flower_superexec()


def serverapp() -> None:
    """Run one run's ServerApp as Flower's process of that name does; the command ``edelweiss-serverapp``."""
    from flwr.superlink.cli import flwr_serverapp
    from flwr.superlink.runtime import run_serverapp

    show_certificate()
    sys.modules[run_serverapp.__module__].run_ = run_installed  # type: ignore[attr-defined]
    flwr_serverapp()


def run_installed(*, grid: Grid, context: Context, **_: Any) -> Context:
    """Run the installed ServerApp in place of the bundle's; takes what Flower's ``run`` takes."""
    from edelweiss.federation.fingerprint import release
    from edelweiss.server_app.app import app

    log.info("the installed release %s runs, and no code of the bundle", release())
    app(grid=grid, context=context)
    return context
