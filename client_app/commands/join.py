"""``edelweiss-site join``: connect to a coordinator and answer its messages in this process."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from edelweiss.client_app.connection import declare, join_config

if TYPE_CHECKING:
    import argparse

DESCRIPTION = (
    "Connect to a coordinator and answer its messages in this process, until SIGTERM or Ctrl-C. Code that a run "
    "brings is never executed, only that of this installation."
)

__all__ = ["DESCRIPTION", "declare", "run"]


def run(options: argparse.Namespace) -> int:
    """Join."""
    config = join_config(options)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # `client_app.fleet` explains errors once
    own = f"{config.name}: ".replace("%", "%%") if config.name else ""
    logging.basicConfig(format=f"%(asctime)s %(levelname)s {own}%(message)s", level=logging.WARNING)
    logging.getLogger("edelweiss").setLevel(logging.INFO)

    from edelweiss.common.memory import collecting_rarely

    with collecting_rarely():  # of what is imported, nothing is garbage
        from edelweiss.client_app.join import join
        from edelweiss.client_app.policy import rules  # noqa: F401  # which joining reads, and which loads torch

    flower = logging.getLogger("flwr")
    flower.handlers.clear()  # its lines lack times
    flower.setLevel(logging.WARNING)
    return join(config)
