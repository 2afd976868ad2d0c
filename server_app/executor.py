"""The coordinator's executor: Flower's SuperExec, which here launches the installed release and no code of a run.

Whoever reaches the SuperLink's Control API may submit a bundle. Flower's own executor runs the ServerApp that lies in
it, which could read the executor's key. ``edelweiss-executor`` takes the same options and for each run launches
``edelweiss-serverapp``, which reads the run's keys from the bundle's pyproject.toml and runs the ServerApp of this
installation.

The internals are those of flwr 1.39; `tests/deployment/test_tickets.py` tries them.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from edelweiss.server_app.control import show_certificate

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

COMMAND = "edelweiss-serverapp"
LOST = "lost:"  # begins what the SuperLink says of a run whose process was killed

log = logging.getLogger("edelweiss")


def main() -> None:
    """Launch the ServerApp of this installation for each run; the command ``edelweiss-executor``."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
    from flwr.supercore.superexec.executor import subprocess_executor

    show_certificate()
    vars(subprocess_executor)["subprocess"] = SimpleNamespace(Popen=watched, DEVNULL=subprocess.DEVNULL)
    for kind in TASK_TYPE_TO_COMMAND:
        TASK_TYPE_TO_COMMAND[kind] = COMMAND if kind is TaskType.SERVER_APP else "false"
    flower_superexec()


def watched(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a ServerApp; if it is killed, mark its run folder and tell the SuperLink, which would wait for a minute."""
    from edelweiss.server_app.run_folder import FOLDER_PIPE

    there, here = os.pipe()
    environment = os.environ | {FOLDER_PIPE: str(here)}
    process = subprocess.Popen(command, env=environment, pass_fds=[here], **options)
    os.close(here)
    threading.Thread(target=_await_end, args=(process, command, there), daemon=True).start()
    return process


def _await_end(process: subprocess.Popen[bytes], command: list[str], pipe: int) -> None:
    from edelweiss.server_app.run_folder import mark_lost

    code = process.wait()
    os.set_blocking(pipe, False)
    with os.fdopen(pipe, "rb") as file:
        folder = file.read() or b""
    if code >= 0:
        return  # it has said how it ended
    if folder:
        mark_lost(Path(os.fsdecode(folder)))
    name = signal.Signals(-code).name
    log.error("a ServerApp was killed by %s; its run is lost", name)
    try:
        _tell_superlink(command, f"{LOST} its process was killed by {name}; it can be resumed")
    except Exception as error:
        log.warning("the SuperLink could not be told: %s", error)  # it notices by itself


def _tell_superlink(command: list[str], details: str) -> None:
    """End a ServerApp's task in its stead, by the options that it was started with."""
    from flwr.common.constant import SubStatus
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest
    from flwr.superlink.cli.flwr_serverapp import _parse_args_run_flwr_serverapp as parser
    from flwr.superlink.grid import HttpGrid

    options, _ = parser().parse_known_args(command[1:])
    certificates = Path(options.root_certificates).read_bytes() if options.root_certificates else None
    grid = HttpGrid(options.runtime_api_address, options.insecure, certificates, token=options.token)
    grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=details))
    grid.close()


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
